"""The entry file of an archive: nothing of a changed folder runs, and the message names the file."""

from __future__ import annotations

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

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.backends.travelling_files import travelling_files
from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder

PACKAGE = "torchserve_neuron_lstm"
ENTRY_FILE = "neuron_lstm.py"
MARKER = "import os\nopen(os.environ['MARKER'], 'a').write(__name__)\n"
START = """
import builtins, importlib, json, os, sys, traceback
import dataclasses, hashlib, logging, pathlib, typing  # as TorchServe does before any handler
folder = sys.argv[1]
os.chdir(folder)
sys.path.insert(0, folder)
class Context:
    system_properties = {"model_dir": folder}
try:
    importlib.import_module("neuron_lstm").NeuronLstm().initialize(Context())
except Exception as error:
    sys.exit("".join(traceback.format_exception(error)) + f"\\nREFUSED {error}")
"""
"""A worker without torch, for an archive whose `torchserve.py` only marks that it ran."""


def small(folder: Path) -> Path:
    """An archive with all kinds of files, of which the entry point writes the marker; it starts in 0.1 s."""
    files = [*travelling_files("eager"), Path("user.py")]
    for file in files:
        path = folder / PACKAGE / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""A module."""\n')
    (folder / PACKAGE / "handlers" / "torchserve.py").write_text(
        f"import helper, package.inner, folder_only.module\n{MARKER}\n"
        "load = lambda context: None\nassert helper.__file__ and helper.WORD == 'listed'\n"
    )
    source = Path(check_folder.__code__.co_filename).parent
    shutil.copy(source / "runtime" / "checked_modules.py", folder / PACKAGE / "handlers" / "runtime")
    shutil.copy(source / ENTRY_FILE, folder)
    texts = {
        "helper.py": "WORD = 'listed'\n",
        "package/__init__.py": "",
        "package/inner.py": "from . import other\n",
        "package/other.py": "",
        "folder_only/module.py": "",
        "index_to_name.json": '{"0": "no"}',
        "model-config.yaml": "batchSize: 8\n",
        "variants.json": "{}\n",
        "MAR-INF/MANIFEST.json": '{"model": {"modelName": "small"}}',
        "weights.pt": "0123456789" * 50,
        "programs/eager/any/program.pt2": "PK",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    write_list(folder)
    return folder


@pytest.fixture(scope="module")
def pristine_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small archive, which no test changes."""
    return small(tmp_path_factory.mktemp("small") / "archive")


@pytest.fixture
def folder(pristine_small: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(pristine_small, tmp_path / "archive"))


class Started:
    """The end of a worker: `ran` is what the marker says, `refusal` the message, if there is one."""

    def __init__(self, folder: Path, **environment: str) -> None:
        marker = folder.parent / "marker"
        marker.unlink(missing_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [sys.executable, "-c", START, str(folder)],
            env={**kept, "MARKER": str(marker), **environment},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        self.ready = done.returncode == 0
        self.told = done.stderr
        self.refusal = done.stderr.rpartition("REFUSED ")[2].strip()
        self.ran = marker.read_text() if marker.exists() else ""


def test_an_untouched_archive_is_ready(folder: Path) -> None:
    """The marker shows that the entry point ran."""
    started = Started(folder)

    assert started.ready, started.told
    assert started.ran == f"{PACKAGE}.handlers.torchserve"


def files_of(folder: Path) -> list[str]:
    """The relative path of every file."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_every_file_changed_by_one_byte_is_named(pristine: Path, tmp_path: Path) -> None:
    """Every file of a real archive, the manifests, the list and the entry file among them, anywhere in it."""
    compiled = shutil.ignore_patterns("__pycache__")  # by another test that loaded it
    archive = Path(shutil.copytree(pristine, tmp_path / "archive", ignore=compiled))
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
        "SHA256SUMS",
        "variants.json",
        "MAR-INF/MANIFEST.json",
        "weights.pt",
        "helper.py",
        f"{PACKAGE}/__init__.py",
        f"{PACKAGE}/handlers/torchserve.py",
        f"{PACKAGE}/handlers/runtime/checked_modules.py",
    ],
)
def test_nothing_runs_after_a_change_of_one_byte(folder: Path, name: str) -> None:
    """A space at the end of a file is enough."""
    with (folder / name).open("a") as file:
        file.write(" ")
    started = Started(folder)

    assert not started.ready
    assert name in started.refusal
    assert not started.ran


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_list_holds_in_every_byte(pristine_small: Path, data: st.DataObject) -> None:
    """No byte of it can be changed, removed or added without a refusal that names the list."""
    from torchserve_neuron_lstm.handlers.neuron_lstm import parse_list

    content = (pristine_small / "SHA256SUMS").read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.binary(min_size=0, max_size=2))
    changed = content[:position] + byte + content[position + 1 :]
    if changed != content:
        with pytest.raises(RuntimeError, match="SHA256SUMS"):
            parse_list(changed)


ADDED = {
    "orjson.py": "orjson.py",
    "sqlite3.py": "sqlite3.py",
    "new_module.py": "new_module.py",
    "notes.txt": "notes.txt",
    ".hidden": ".hidden",
    ".folder/file": ".folder/file",
    "helper/__init__.py": "a package in the place of a module",
    f"{PACKAGE}/handlers/torchserve/__init__.py": "the same in the package",
    f"{PACKAGE}/orjson.py": "a module in the package",
    "helper.pyc": "bytecode beside its source",
    f"{PACKAGE}.py": "a module beside the package",
    f"{PACKAGE}/__pycache__/note.txt": "a file in a folder of caches",
    "__pycache__/helper.py": "a module in a folder of caches",
    "__pycache__/neuron_lstm.folder/module.py": "a folder with the name of a cache",
    "programs/eager/any/more.pt2": "a program",
}


@pytest.mark.parametrize("name", ADDED)
def test_an_added_file_does_not_run_and_is_named(folder: Path, name: str) -> None:
    """The code in it would write the marker."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MARKER)
    started = Started(folder)

    assert not started.ready
    assert f"{name} is not in SHA256SUMS" in started.refusal
    assert not started.ran


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
def test_planted_bytecode_of_a_listed_module_does_not_run(folder: Path, module: str) -> None:
    """A module that Python has compiled before is read from there."""
    cache = plant_bytecode(folder / module, MARKER)
    started = Started(folder)

    assert not started.ready
    assert cache.relative_to(folder).as_posix() in started.refusal
    assert not started.ran


def test_planted_bytecode_of_the_shim_is_noticed_while_it_checks(folder: Path) -> None:
    """It runs, as the entry file itself does; only one that has no check passes."""
    cache = plant_bytecode(folder / ENTRY_FILE, (folder / ENTRY_FILE).read_text() + MARKER)
    started = Started(folder)

    assert not started.ready
    assert cache.relative_to(folder).as_posix() in started.refusal
    assert started.ran == "neuron_lstm"


def _link(path: Path) -> None:
    outside = Path(os.environ["OUTSIDE"]) / "moved"
    path.rename(outside)
    path.symlink_to(outside)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("replace", [_link, _pipe, _folder, _remove])
@pytest.mark.parametrize("name", ["SHA256SUMS", "weights.pt", "helper.py", ENTRY_FILE, f"{PACKAGE}/__init__.py"])
def test_a_file_replaced_by_something_else_is_named(
    folder: Path, name: str, replace: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to the very same content counts as a change, because its target may change later."""
    monkeypatch.setenv("OUTSIDE", str(folder.parent))
    replace(folder / name)
    if name == ENTRY_FILE and replace is not _link:  # there is nothing left to run
        with pytest.raises(RuntimeError, match="neuron_lstm"):
            check_folder(str(folder), None)
        return
    started = Started(folder)

    assert not started.ready
    assert name in started.refusal
    assert not started.ran


@pytest.mark.parametrize("name", ["programs", "package", "__pycache__"])
def test_a_linked_folder_is_named(folder: Path, name: str) -> None:
    """The files in it are outside the archive."""
    outside = folder.parent / "outside"
    if (folder / name).exists():
        (folder / name).rename(outside)
    else:
        outside.mkdir()
    (folder / name).symlink_to(outside)
    started = Started(folder)

    assert not started.ready
    assert f"{name} is not in SHA256SUMS" in started.refusal
    assert not started.ran


@pytest.mark.parametrize("name", ["json/__init__.py", "hashlib.py", "sitecustomize.py", "base64.py", "re/__init__.py"])
def test_a_name_that_python_imports_early_is_never_ready(folder: Path, name: str) -> None:
    """Such a file may run before the entry file, as SECURITY.md says: here the shadowed module runs."""
    spec = importlib.util.find_spec(name.partition("/")[0].removesuffix(".py"))
    if name == "sitecustomize.py":
        (folder / name).write_text("")
    elif spec is not None and spec.submodule_search_locations:
        shutil.copytree(spec.submodule_search_locations[0], folder / Path(name).parent)
    elif spec is not None and spec.origin is not None:
        shutil.copy(spec.origin, folder / name)
    started = Started(folder, PYTHONPATH=str(folder))

    assert not started.ready
    assert name in started.refusal


def test_the_modules_of_the_shim_do_not_come_from_the_folder(folder: Path) -> None:
    """Those that Python has not imported before the entry file runs are taken from Python's own library."""
    for name in ("base64", "stat", "importlib.util", "pathlib", "cryptography"):
        (folder / f"{name}.py").write_text(MARKER)
    started = Started(folder)

    assert not started.ready
    assert not started.ran


def test_a_killed_worker_comes_back_in_spite_of_the_caches_of_python(folder: Path) -> None:
    """Python writes bytecode of the entry file only, and may be killed while it does."""
    assert Started(folder).ready
    cache = Path(cache_from_source(str(folder / ENTRY_FILE)))
    assert files_of(folder / "__pycache__") == [cache.name]
    assert list(folder.rglob("__pycache__")) == [folder / "__pycache__"]
    (cache.parent / f"{cache.name}.140234").write_bytes(b"half of a cache")

    again = Started(folder)
    assert again.ready, again.told
    assert again.ran


def test_a_change_after_the_check_does_not_reach_what_is_imported_later(folder: Path) -> None:
    """Modules are compiled from the bytes that were checked, and bytecode is not read."""
    entry = folder / PACKAGE / "handlers" / "torchserve.py"
    entry.write_text(
        "import pathlib, sys\n"
        f"folder = pathlib.Path({str(folder)!r})\n"
        "(folder / 'helper.py').write_text('WORD = 1')\n"
        "(folder / 'package' / 'late.py').write_text('WORD = 1')\n"
        "(folder / 'fresh.py').write_text('WORD = 1')\n"
        "import helper\n"
        "assert helper.WORD == 'listed'\n"
        "for name in ('package.late', 'fresh', 'torchserve_neuron_lstm.fresh'):\n"
        "    try:\n"
        "        __import__(name)\n"
        "    except ModuleNotFoundError:\n"
        "        continue\n"
        "    raise RuntimeError(name)\n"
        "load = lambda context: None\n"
    )
    write_list(folder)
    started = Started(folder)

    assert started.ready, started.told


def test_modules_show_their_file_and_source(folder: Path) -> None:
    """Tracebacks, `inspect` and packages of the user's work as with files."""
    (folder / PACKAGE / "handlers" / "torchserve.py").write_text(
        "import inspect, package.inner, folder_only.module, helper\n"
        "assert inspect.getsource(helper) == \"WORD = 'listed'\\n\"\n"
        f"assert helper.__file__ == {str(folder / 'helper.py')!r}\n"
        f"assert list(package.__path__) == [{str(folder / 'package')!r}]\n"
        "assert package.inner.other.__name__ == 'package.other'\n"
        "load = lambda context: None\n"
    )
    write_list(folder)
    started = Started(folder)

    assert started.ready, started.told


def test_a_handler_of_another_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its check would be of its own folder."""
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    program = START.replace('{"model_dir": folder}', f'{{"model_dir": {str(other)!r}}}')
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=folder, capture_output=True, text=True, check=False
    )

    assert done.returncode != 0
    assert f"the archive is in {other}" in done.stderr


def test_many_files_are_one_short_line(folder: Path) -> None:
    """Names that could break the line of a log are escaped."""
    for index in range(9):
        (folder / f"file{index}\n").write_text("")
    with pytest.raises(RuntimeError, match=r"file0\\n.* and 4 more") as refused:
        check_folder(str(folder), None)
    assert "\n" not in str(refused.value)


def test_an_environment_of_the_model_is_no_file_of_the_archive(folder: Path) -> None:
    """TorchServe with `useVenv` makes `venv` in the folder, and runs the worker by it.

    A folder of this name that is not the worker's environment is refused.
    """
    shutil.copytree(Path(sys.executable).parent, folder / "venv" / "bin", symlinks=True)
    with pytest.raises(RuntimeError, match="venv/bin"):
        check_folder(str(folder), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "prefix", str(folder / "venv"))
        check_folder(str(folder), None)


def test_sha256sum_reads_the_list(pristine: Path) -> None:
    """Everybody can compare an unpacked archive with its list."""
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=pristine, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_a_shim_with_another_byte_is_never_ready(folder: Path, seed: int) -> None:
    """It runs and refuses itself, or does not run at all."""
    content = bytearray((folder / ENTRY_FILE).read_bytes())
    drawn = random.Random(seed)
    content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(7)
    (folder / ENTRY_FILE).write_bytes(content)
    started = Started(folder)

    assert not started.ready
    assert ENTRY_FILE in started.told
    assert not started.ran
