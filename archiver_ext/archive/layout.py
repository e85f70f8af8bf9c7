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
_MANIFEST = ("manifest.py", "json_codec.py", "partitioner.py")
"""What of `config` reads a manifest, and needs the standard library alone."""
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


def copy_serving_files(tree: Path, package: Path, left_out: Iterable[Path]) -> None:
    """Copy what a host needs to serve: the shim, and the package without its packaging half.

    `left_out` are the files of engines that this archive does not use.
    """
    skipped = {path.resolve() for path in left_out}
    for source in _serving_files(package):
        if source.resolve() not in skipped:
            target = tree / PACKAGE / source.relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    shutil.copyfile(package / "handlers" / SHIM, tree / SHIM)


def _serving_files(package: Path) -> list[Path]:
    folders = [sorted((package / name).rglob("*.py")) for name in ("handlers", "bucketing", "backends", "sessions")]
    return [
        package / "__init__.py",
        package / "config" / "__init__.py",
        *(package / "config" / name for name in _MANIFEST),
        *(file for files in folders for file in files),
    ]
