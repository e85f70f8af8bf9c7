"""The files that travel in an archive: exactly those that serving with one engine imports."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from import_rules import Import, imports_of

from torchserve_neuron_lstm.backends import registry
from torchserve_neuron_lstm.backends.travelling_files import BASE, STORE_FILES, travelling_files

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = ("handlers/torchserve.py", "handlers/neuron_lstm.py")
"""Imported by TorchServe."""

COMPILE_ONLY = {
    "backends/aws_neuron/source_export.py",
    "backends/aws_neuron/toolchain.py",
    "backends/cpp_compiler.py",
    "backends/cuda/capturable.py",
    "backends/exported_program.py",
    "backends/exported_tensors.py",
    "backends/inductor_compiler.py",
    "backends/native/build.py",
    "backends/native/rewrite.py",
    "backends/partitioning/backend.py",
    "backends/onnx_export.py",
    "backends/openvino_recurrences.py",
    "backends/program_source/write.py",
    "backends/torch_files.py",
    "backends/vollo/compiler.py",
    "backends/vollo/rewrite.py",
    "backends/vollo/translate.py",
    "config/partitioner.py",
}
"""Files that travelling files import inside functions that only packaging calls."""

LINES = 12_750
"""The largest number of source lines in an archive for onnxruntime."""


def travelling(name: str, *, cpu_segments: bool = False, store: str | None = None) -> set[str]:
    """The listed modules, except the package's own `__init__.py`, which imports others in a function."""
    files = travelling_files(name, cpu_segments=cpu_segments, store=store)
    return {file.as_posix() for file in files if file.suffix == ".py"} - {"__init__.py"}


@cache
def travelling_with_any() -> set[str]:
    """The modules listed for any engine and store."""
    stores = (None, *STORE_FILES)
    return {file for engine in registry.ENGINES for store in stores for file in travelling(engine, store=store)}


def entry_points(name: str) -> list[str]:
    """The modules where serving begins."""
    module = registry.ENGINES[name].module.replace(".", "/")
    return [*ENTRY_POINTS, f"backends/{module}.py"]


def closure(start: Collection[str], excluded: Collection[str], *, functions: bool) -> set[str]:
    """The files imported from `start`, directly or indirectly; with `functions`, inside functions too."""
    found: set[str] = set()
    pending = list(start)
    while pending:
        file = pending.pop()
        if file in found or file in excluded:
            continue
        found.add(file)
        pending += [f"{folder}/__init__.py" for folder in Path(file).parents if folder != Path()]
        pending += [
            imported
            for one in imports(file)
            if one.ours and not one.typing_only and (functions or not one.in_function)
            if (imported := file_of(one.module)) is not None
        ]
    return found


@cache
def imports(file: str) -> list[Import]:
    """The imports of a file, which many closures have."""
    return list(imports_of(ROOT / file, ROOT))


@cache
def file_of(module: str) -> str | None:
    """The file of an imported module or of an imported name's module."""
    whole = module.replace(".", "/")
    for path in (f"{whole}.py", f"{whole}/__init__.py"):
        if (ROOT / path).is_file():
            return path
    return file_of(module.rpartition(".")[0]) if "." in module else None


@pytest.mark.parametrize("name", registry.ENGINES)
def test_an_archive_has_what_importing_the_engine_needs(name: str) -> None:
    """No import at the top of a file can fail on a host."""
    assert closure(entry_points(name), (), functions=False) - travelling(name) == set()


@pytest.mark.parametrize("store", [None, *STORE_FILES])
@pytest.mark.parametrize("cpu_segments", [False, True])
@pytest.mark.parametrize("name", registry.ENGINES)
def test_an_archive_has_exactly_what_serving_imports(name: str, cpu_segments: bool, store: str | None) -> None:
    """No file is missing and none is unused.

    Imports inside functions count, except those of packaging and of other engines.
    """
    listed = travelling(name, cpu_segments=cpu_segments, store=store)
    others = travelling_with_any() - listed
    imported = closure(entry_points(name), others | COMPILE_ONLY, functions=True)

    assert imported == listed


@pytest.mark.parametrize("name", registry.ENGINES)
def test_a_file_that_is_no_module_is_read_by_a_module_beside_it(name: str) -> None:
    """Such as the source of a kernel, which the host compiles."""
    for file in travelling_files(name):
        if file.suffix != ".py":
            modules = [ROOT / one for one in travelling(name) if Path(one).parent == file.parent]
            assert any(f'"{file.name}"' in module.read_text("utf-8") for module in modules)


def test_the_files_of_packaging_do_not_travel() -> None:
    """Each is imported inside a function of a travelling file, and travels with no engine."""
    everything = {file for name in registry.ENGINES for file in travelling(name)}
    reached = {file_of(one.module) for file in everything for one in imports_of(ROOT / file, ROOT) if one.ours}

    assert COMPILE_ONLY & everything == set()
    assert COMPILE_ONLY - reached == set()


@pytest.mark.parametrize("name", registry.ENGINES)
def test_every_pattern_names_a_file(name: str) -> None:
    """A renamed file is detected."""
    own = [f"backends/{file}" for file in (*registry.ENGINES[name].files, *registry.CPU_FILES)]
    patterns = [*BASE, *chain(*STORE_FILES.values()), *own]

    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern)) and pattern != "__init__.py"] == []


def test_an_engine_of_another_distribution_adds_no_file() -> None:
    """The engine is installed with its own distribution; no engine of ours is added."""
    assert travelling("elsewhere") == set.intersection(*map(travelling, registry.ENGINES))


def test_an_archive_is_small() -> None:
    """The limit detects a file of packaging among the others."""
    assert sum(len((ROOT / file).read_text("utf-8").splitlines()) for file in travelling("onnxruntime")) <= LINES
