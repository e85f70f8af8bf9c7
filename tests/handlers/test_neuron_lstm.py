"""The entry file of an archive: nothing of a changed folder runs, and the message names the file."""

import hashlib
import importlib.util
import os
import py_compile
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.neuron_lstm import TITLE, check_folder, parse_list

from .small_archive import ENTRY_FILE, MARKER, PACKAGE, START, Started, files_of


def test_an_untouched_archive_is_ready(small_archive: Path) -> None:
    started = Started(small_archive)

    assert started.ready, started.told
    assert started.ran == f"{PACKAGE}.handlers.torchserve"


@pytest.mark.ci
def test_every_file_changed_by_one_byte_is_named(archive: Path) -> None:
    names = files_of(archive)
    assert {"SHA256SUMS", ENTRY_FILE, "variants.json", "MAR-INF/MANIFEST.json", "weights.pt"} <= set(names)
    drawn = random.Random(0)
    for name in names:
        content = (archive / name).read_bytes()
        changed = bytearray(content or b"x")
        changed[drawn.randrange(len(changed))] ^= 1
        (archive / name).write_bytes(changed)
        with pytest.raises(RuntimeError, match=re.escape(name)):
            check_folder(str(archive), None)
        (archive / name).write_bytes(content)
    check_folder(str(archive), None)


@pytest.mark.parametrize(
    "name",
    [
        *("SHA256SUMS", "variants.json", "MAR-INF/MANIFEST.json", "weights.pt"),
        *("helper.py", f"{PACKAGE}/__init__.py", f"{PACKAGE}/handlers/torchserve.py"),
        f"{PACKAGE}/handlers/runtime/checked_modules.py",
    ],
)
def test_nothing_runs_after_a_change_of_one_byte(small_archive: Path, name: str) -> None:
    with (small_archive / name).open("a") as file:
        file.write(" ")

    Started(small_archive).assert_refused(name)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_list_holds_in_every_byte(pristine_small: Path, data: st.DataObject) -> None:
    content = (pristine_small / "SHA256SUMS").read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.binary(min_size=0, max_size=2))
    changed = content[:position] + byte + content[position + 1 :]
    if changed != content:
        with pytest.raises(RuntimeError, match="SHA256SUMS"):
            parse_list(changed)


def test_a_handler_of_another_folder_is_refused(small_archive: Path, tmp_path: Path) -> None:
    """Its check would be of its own folder."""
    other = Path(shutil.copytree(small_archive, tmp_path / "other"))
    program = START.replace('{"model_dir": folder}', f'{{"model_dir": {str(other)!r}}}')
    command = [sys.executable, "-c", program, str(small_archive)]
    done = subprocess.run(command, cwd=small_archive, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert f"the archive is in {other}" in done.stderr


def test_many_files_are_one_short_line(small_archive: Path) -> None:
    for index in range(9):
        (small_archive / f"file{index}\n").write_text("")
    with pytest.raises(RuntimeError, match=r"file0\\n.* and 4 more") as refused:
        check_folder(str(small_archive), None)
    assert "\n" not in str(refused.value)
    (small_archive / "einops.dist-info").mkdir()
    (small_archive / "einops.dist-info" / "RECORD").write_text("")
    with pytest.raises(RuntimeError, match="packages that TorchServe installs need useVenv: true in the YAML"):
        check_folder(str(small_archive), None)


def test_sha256sum_reads_the_list(pristine: Path) -> None:
    """Everybody can compare an unpacked archive with its list."""
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=pristine, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_a_shim_with_another_byte_is_never_ready(small_archive: Path, seed: int) -> None:
    content = bytearray((small_archive / ENTRY_FILE).read_bytes())
    drawn = random.Random(seed)
    content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(7)
    (small_archive / ENTRY_FILE).write_bytes(content)
    started = Started(small_archive)

    assert not started.ready
    assert ENTRY_FILE in started.told
    assert not started.ran


ADDED = {
    **{name: name for name in ("orjson.py", "sqlite3.py", "new_module.py", "notes.txt", ".hidden", ".folder/file")},
    "helper/__init__.py": "a package in the place of a module",
    f"{PACKAGE}/handlers/torchserve/__init__.py": "the same in the package",
    f"{PACKAGE}/orjson.py": "a module in the package",
    "helper.pyc": "bytecode beside its source",
    f"{PACKAGE}.py": "a module beside the package",
    f"{PACKAGE}/__pycache__/note.txt": "a file in a folder of caches",
    "__pycache__/helper.py": "a module in a folder of caches",
    "__pycache__/neuron_lstm.folder/module.py": "a folder with the name of a cache",
    "programs/eager/any/more.pt2": "a program",
    **dict.fromkeys(("orjson/", "package/orjson/", "__pycache__/helper/"), "a folder that Python could import"),
}


@pytest.mark.few(14)
@pytest.mark.parametrize("name", ADDED)
def test_an_added_file_does_not_run_and_is_named(small_archive: Path, name: str) -> None:
    path = small_archive / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if name.endswith("/") else path.write_text(MARKER)

    Started(small_archive).assert_refused(f"{name} is not in SHA256SUMS")


def plant_bytecode(module: Path, text: str) -> Path:
    """Put bytecode of another text beside a module, of the kind that is not compared with the source."""
    planted = module.with_name("planted")
    planted.write_text(text)
    cache = Path(cache_from_source(str(module)))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(planted), str(cache), doraise=True, invalidation_mode=mode)
    planted.unlink()
    return cache


@pytest.mark.parametrize("module", ["helper.py", "package/inner.py", f"{PACKAGE}/handlers/torchserve.py"])
def test_planted_bytecode_of_a_listed_module_does_not_run(small_archive: Path, module: str) -> None:
    """A module that Python has compiled before is read from there."""
    cache = plant_bytecode(small_archive / module, MARKER)

    Started(small_archive).assert_refused(cache.relative_to(small_archive).as_posix())


def test_planted_bytecode_of_the_shim_is_noticed_while_it_checks(small_archive: Path) -> None:
    """It runs, as the entry file itself does; only one that has no check passes."""
    cache = plant_bytecode(small_archive / ENTRY_FILE, (small_archive / ENTRY_FILE).read_text() + MARKER)

    Started(small_archive).assert_refused(cache.relative_to(small_archive).as_posix(), ran="neuron_lstm")


@pytest.mark.parametrize("name", ["json/__init__.py", "hashlib.py", "sitecustomize.py", "base64.py", "re/__init__.py"])
def test_a_name_that_python_imports_early_is_never_ready(small_archive: Path, name: str) -> None:
    """Such a file may run before the entry file, as SECURITY.md says: here the shadowed module runs."""
    spec = importlib.util.find_spec(name.partition("/")[0].removesuffix(".py"))
    if name == "sitecustomize.py":
        (small_archive / name).write_text("")
    elif spec is not None and spec.submodule_search_locations:
        shutil.copytree(spec.submodule_search_locations[0], small_archive / Path(name).parent)
    elif spec is not None and spec.origin is not None:
        shutil.copy(spec.origin, small_archive / name)
    started = Started(small_archive, PYTHONPATH=str(small_archive))

    assert not started.ready
    assert name in started.refusal


def test_the_modules_of_the_shim_do_not_come_from_the_folder(small_archive: Path) -> None:
    """Those that Python has not imported before the entry file runs are taken from Python's own library."""
    for name in ("base64", "stat", "importlib.util", "pathlib", "cryptography"):
        (small_archive / f"{name}.py").write_text(MARKER)

    Started(small_archive).assert_refused()


def test_a_killed_worker_comes_back_in_spite_of_the_caches_of_python(small_archive: Path) -> None:
    """Python writes bytecode of the entry file only, and may be killed while it does."""
    assert Started(small_archive).ready
    cache = Path(cache_from_source(str(small_archive / ENTRY_FILE)))
    assert files_of(small_archive / "__pycache__") == [cache.name]
    assert list(small_archive.rglob("__pycache__")) == [small_archive / "__pycache__"]
    (cache.parent / f"{cache.name}.140234").write_bytes(b"half of a cache")
    (small_archive / "package" / "__pycache__").mkdir()  # that of a tool, emptied

    again = Started(small_archive)
    assert again.ready, again.told
    assert again.ran


def test_an_environment_of_the_model_is_no_file_of_the_archive(small_archive: Path) -> None:
    """TorchServe with `useVenv` makes `venv` in the folder, and runs the worker by it.

    A folder of this name that is not the worker's environment is refused.
    """
    shutil.copytree(Path(sys.executable).parent, small_archive / "venv" / "bin", symlinks=True)
    with pytest.raises(RuntimeError, match="venv/bin"):
        check_folder(str(small_archive), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "prefix", str(small_archive / "venv"))
        check_folder(str(small_archive), None)


def _link(path: Path, outside: Path) -> None:
    path.rename(outside)
    path.symlink_to(outside)


def _pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.few(14)
@pytest.mark.parametrize("replace", [_link, _pipe, _folder, Path.rename])
@pytest.mark.parametrize("name", ["SHA256SUMS", "weights.pt", "helper.py", ENTRY_FILE, f"{PACKAGE}/__init__.py"])
def test_a_file_replaced_by_something_else_is_named(
    small_archive: Path, name: str, replace: Callable[[Path, Path], object]
) -> None:
    """A link to the very same content counts as a change, because its target may change later."""
    replace(small_archive / name, small_archive.parent / "moved")
    if name == ENTRY_FILE and replace is not _link:  # there is nothing left to run
        with pytest.raises(RuntimeError, match="neuron_lstm"):
            check_folder(str(small_archive), None)
        return

    Started(small_archive).assert_refused(name)


@pytest.mark.parametrize("name", ["programs", "package", "__pycache__"])
def test_a_linked_folder_is_named(small_archive: Path, name: str) -> None:
    """The files in it are outside the archive."""
    outside = small_archive.parent / "outside"
    if (small_archive / name).exists():
        (small_archive / name).rename(outside)
    else:
        outside.mkdir()
    (small_archive / name).symlink_to(outside)

    Started(small_archive).assert_refused(f"{name} is not in SHA256SUMS")


def test_a_path_of_any_length_is_none_of_a_list() -> None:
    """Its folders would take memory that grows with the square of their number."""
    body = f"{TITLE}\n{'0' * 64}  {'a/' * 100_000}a\n".encode()
    with pytest.raises(RuntimeError, match="is not a list of files"):
        parse_list(b"# sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
