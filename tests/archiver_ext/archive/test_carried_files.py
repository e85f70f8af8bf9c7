"""The files that an archive carries: those that serving with its engine and store imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.archive.carried_files import STORES, carried_files, imported_files
from torchserve_neuron_lstm.archiver_ext.archive.layout import package_directory
from torchserve_neuron_lstm.backends import registry

IMPORTS = """
import importlib, os, sys
import torch  # once, for all archives
for folder in sys.argv[1:]:
    if os.fork() == 0:
        sys.path.insert(0, folder)
        with open(f"{folder}/modules") as modules:
            loaded = [importlib.import_module(name) for name in modules.read().split()]
        os._exit(0 if all(module.__file__.startswith(folder) for module in loaded) else 1)
    elif os.wait()[1]:
        sys.exit(folder)
"""
"""A program that imports the modules that serving starts from, from folders of carried files."""


def names(engine: str, **other: object) -> set[str]:
    return {file.as_posix() for file in carried_files(engine, **other)}  # type: ignore[arg-type]


def test_imports_at_the_top_are_followed_and_no_others(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "a/__init__.py": "from .of_package import x",
        "a/start.py": "import json\nfrom ..b import module, name\nfrom .c.d import y\nfrom . import sibling\n"
        "if TYPE_CHECKING:\n    from .typed import z\ndef f():\n    from .lazy import z",
        "b/__init__.py": "",
        "a/c/__init__.py": "",
    }
    modules = ["a/of_package.py", "a/sibling.py", "a/typed.py", "a/lazy.py", "a/c/d.py", "b/module.py", "b/other.py"]
    for name, text in {**files, **dict.fromkeys(modules, "")}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    imported = {path.as_posix() for path in imported_files(tmp_path, [Path("a/start.py")])}

    assert imported == {*files, "a/of_package.py", "a/sibling.py", "a/c/d.py", "b/module.py"}


OWN_CODE = {"own_model": "own_model", "native_layers": "native_layers", "shadow": "shadow"}
"""Modules of `handlers/runtime` from which the model's own code is served, by the argument that asks for them."""


def write_package(folder: Path, files: Iterable[Path], *modules: str) -> None:
    """Copy files of the package to a folder, with the names of modules that are to be imported from there."""
    package = folder / "torchserve_neuron_lstm"
    for file in files:
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package_directory() / file, package / file)
    names = ("handlers.torchserve", *modules)
    (folder / "modules").write_text("\n".join(f"torchserve_neuron_lstm.{name}" for name in names))


def assert_imported(folders: Path) -> None:
    """Import the modules of each folder there."""
    each = sorted(map(str, folders.iterdir()))
    done = subprocess.run([sys.executable, "-c", IMPORTS, *each], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.ci
def test_the_models_own_code_can_be_served_from_the_carried_files(tmp_path: Path) -> None:
    for asked, module in OWN_CODE.items():
        files = carried_files("eager", **{asked: True})  # type: ignore[arg-type]  # one of the flags
        write_package(tmp_path / asked, files, f"handlers.runtime.{module}")

    assert_imported(tmp_path)
    handlers = {file for file in names("eager") if file.startswith("handlers/")}
    assert not any("shadow" in file or "own_model.py" in file.rpartition("/")[2] for file in handlers)


@pytest.mark.ci
def test_what_serving_starts_from_can_be_imported_from_the_carried_files(tmp_path: Path) -> None:
    for engine, store in [*((engine, None) for engine in registry.ENGINES), *(("eager", store) for store in STORES)]:
        start = [file.removesuffix(".py").replace("/", ".") for file in STORES.get(store or "", ())]
        modules = f"backends.{registry.ENGINES[engine].module}", *start
        write_package(tmp_path / f"{engine}_{store}", carried_files(engine, store=store), *modules)

    assert_imported(tmp_path)


@pytest.mark.parametrize("name", registry.ENGINES)
def test_no_file_of_packaging_is_carried(name: str) -> None:
    carried = names(name)
    folders = {spec.module.partition(".")[0] for spec in registry.ENGINES.values() if "." in spec.module}
    own = registry.ENGINES[name].module.partition(".")[0]

    assert {file.partition("/")[0] for file in carried} <= {
        *("__init__.py", "backends", "bucketing", "config", "handlers", "sessions")
    }
    assert not any(file.startswith(tuple(f"backends/{folder}/" for folder in folders - {own})) for file in carried)
    assert carried.isdisjoint({"backends/onnx_export.py", "backends/program_source/write.py", "config/partitioner.py"})


def test_a_store_and_the_segments_of_the_cpu_are_carried_where_they_are_needed() -> None:
    without, client, disk, redis = (names("onnxruntime", store=store) for store in (None, *STORES))

    assert not any(file.startswith(("sessions/sqlite/", "sessions/redis/")) for file in without | client)
    assert "sessions/token.py" in client - without
    assert any(file.startswith("sessions/sqlite/") for file in disk)
    assert not any(file.startswith("sessions/redis/") for file in disk)
    assert not any(file.startswith("sessions/sqlite/") for file in redis)
    assert "backends/eager.py" not in without
    assert "backends/eager.py" in names("onnxruntime", cpu_segments=True)


@pytest.mark.parametrize("name", registry.ENGINES)
def test_the_data_of_an_engine_is_carried(name: str) -> None:
    """Such as the source of a kernel, which the host compiles: a module beside it reads it."""
    for file in registry.ENGINES[name].data:
        path = Path("backends", file)
        modules = [package_directory() / other for other in carried_files(name) if other.parent == path.parent]
        assert path in carried_files(name)
        assert any(f'"{path.name}"' in module.read_text("utf-8") for module in modules if module.suffix == ".py")


def test_an_engine_of_another_distribution_adds_no_file() -> None:
    """The engine is installed with its own distribution; no engine of ours is added."""
    assert names("elsewhere") == set.intersection(*map(names, registry.ENGINES))
