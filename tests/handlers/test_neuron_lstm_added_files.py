"""Files that are added beside those of an archive: none runs, and the message names the file."""

from __future__ import annotations

import importlib.util
import py_compile
import shutil
import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder

from .small_archive import ENTRY_FILE, MARKER, PACKAGE, Started, files_of

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


@pytest.mark.few(14)
@pytest.mark.parametrize("name", ADDED)
def test_an_added_file_does_not_run_and_is_named(small_archive: Path, name: str) -> None:
    """The code in it would write the marker."""
    path = small_archive / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MARKER)
    started = Started(small_archive)

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
def test_planted_bytecode_of_a_listed_module_does_not_run(small_archive: Path, module: str) -> None:
    """A module that Python has compiled before is read from there."""
    cache = plant_bytecode(small_archive / module, MARKER)
    started = Started(small_archive)

    assert not started.ready
    assert cache.relative_to(small_archive).as_posix() in started.refusal
    assert not started.ran


def test_planted_bytecode_of_the_shim_is_noticed_while_it_checks(small_archive: Path) -> None:
    """It runs, as the entry file itself does; only one that has no check passes."""
    cache = plant_bytecode(small_archive / ENTRY_FILE, (small_archive / ENTRY_FILE).read_text() + MARKER)
    started = Started(small_archive)

    assert not started.ready
    assert cache.relative_to(small_archive).as_posix() in started.refusal
    assert started.ran == "neuron_lstm"


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
    started = Started(small_archive)

    assert not started.ready
    assert not started.ran


def test_a_killed_worker_comes_back_in_spite_of_the_caches_of_python(small_archive: Path) -> None:
    """Python writes bytecode of the entry file only, and may be killed while it does."""
    assert Started(small_archive).ready
    cache = Path(cache_from_source(str(small_archive / ENTRY_FILE)))
    assert files_of(small_archive / "__pycache__") == [cache.name]
    assert list(small_archive.rglob("__pycache__")) == [small_archive / "__pycache__"]
    (cache.parent / f"{cache.name}.140234").write_bytes(b"half of a cache")

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
