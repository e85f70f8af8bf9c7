"""Paths in an archive: the user's files, the serving code, the programs and the manifest."""

from __future__ import annotations

import filecmp
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ...backends.interface import Backend
from ...backends.subprocesses import PACKAGE
from ...bucketing.shapes import Bucket, BucketGrid, ProgramRole, TensorSpec, role_buckets
from ...handlers.formats.request import read_labels
from ...handlers.neuron_lstm import LIST
from ..errors import PackagingError, refusing

ENTRY_FILE = "neuron_lstm.py"
PROGRAMS = "programs"
CONSTANTS = f"{PROGRAMS}/constants.pt"
RECURRENCES = f"{PROGRAMS}/recurrences"
_OURS = (ENTRY_FILE, PACKAGE, PROGRAMS, "variants.json", "MAR-INF", LIST)


def variant_directory(backend: str, role: ProgramRole, bucket: Bucket | None) -> str:
    """Return the directory of a variant in an archive, e.g. `programs/inductor/chunk/b4_t16`."""
    shape = "any" if bucket is None else f"b{bucket.batch}_t{bucket.length}"
    return f"{PROGRAMS}/{backend}/{role}/{shape}"


def programs_to_compile(
    engine: Backend, roles: Iterable[ProgramRole], grid: BucketGrid
) -> Iterator[tuple[ProgramRole, Bucket | None, str]]:
    """List every role in every bucket, or once for an engine that takes every shape, with the variant's directory."""
    for role in roles:
        for bucket in [None] if engine.polymorphic else role_buckets(role, grid):
            yield role, bucket, variant_directory(engine.name, role, bucket)


def package_directory() -> Path:
    """Return the directory of this package, including the code for packaging."""
    return Path(sys.modules[PACKAGE].__path__[0])


def check_collisions(tree: Path, given: Iterable[str]) -> None:
    """Refuse user files that would overwrite each other, or files of this package.

    `given` are the files that have a flag.

    Raises `PackagingError`: names each of them.
    """
    if taken := [name for name in _OURS if (tree / name).exists()]:
        raise PackagingError(
            f"--extra-files: {', '.join(taken)} would replace a file that the handler neuron_lstm puts into the "
            f"archive; give it another name"
        )
    if overwritten := [path for path in given if not filecmp.cmp(path, tree / Path(path).name, shallow=False)]:
        raise PackagingError(
            f"{', '.join(overwritten)}: another file of that name is given as well, and an archive has all files in "
            f"one folder; give one of them another name"
        )


def copy_serving_files(tree: Path, files: Iterable[Path]) -> None:
    """Copy the entry file and the serving files of the package, given relative to the package."""
    package = package_directory()
    for file in files:
        target = tree / PACKAGE / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / file, target)
    shutil.copyfile(package / "handlers" / ENTRY_FILE, tree / ENTRY_FILE)


def check_labels(directory: Path, outputs: Sequence[TensorSpec], codec: str | None) -> None:
    """Refuse names of classes that servers would refuse. Raises `PackagingError`: they do not fit the outputs."""
    if codec is None:
        with refusing(RuntimeError):
            read_labels(directory, outputs)
