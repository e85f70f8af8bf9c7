"""The archive before it is one: the user's files, the serving half, the programs and the manifest, in one folder."""

from __future__ import annotations

import filecmp
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from ...backends.subprocesses import PACKAGE
from ..errors import PackagingError

SHIM = "neuron_lstm.py"
PROGRAMS = "programs"
_OURS = (SHIM, PACKAGE, PROGRAMS, "variants.json", "MAR-INF")


def package_directory() -> Path:
    """Where this package lies, packaging half and all."""
    return Path(sys.modules[PACKAGE].__path__[0])


def check_collisions(tree: Path, given: Iterable[str]) -> None:
    """Refuse files of the user's that would be overwritten by each other, or would overwrite ours.

    `given` are the files that have a flag of their own.

    Raises:
        PackagingError: names each of them.
    """
    taken = [name for name in _OURS if (tree / name).exists()]
    if taken:
        raise PackagingError(
            f"--extra-files: {', '.join(taken)} would stand in the place of a file that the handler neuron_lstm puts "
            f"into the archive; give it another name"
        )
    overwritten = [path for path in given if not filecmp.cmp(path, tree / Path(path).name, shallow=False)]
    if overwritten:
        raise PackagingError(
            f"{', '.join(overwritten)}: another file of that name is given as well, and in an archive all files lie "
            f"in one folder; give one of them another name"
        )


def copy_serving_files(tree: Path, package: Path, files: Iterable[Path]) -> None:
    """Copy the shim, and the files of the package that a host needs to serve, given relative to the package."""
    for file in files:
        target = tree / PACKAGE / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / file, target)
    shutil.copyfile(package / "handlers" / SHIM, tree / SHIM)
