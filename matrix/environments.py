"""Virtual environments of the matrix, made by uv."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .corners import Host, Packager

ROOT = Path(__file__).resolve().parents[1]
# pyproject.toml tells uv that torch needs nothing of CUDA, which is so for the build of the lock file alone.
_UV = (str(Path(sys.executable).with_name("uv")), "--no-config")
_EXTRAS = "onnxruntime,redis,serve,sign"
_TESTS = ("pytest>=8,<9", "pytest-timeout", "pytest-xdist", "hypothesis", "jsonschema", "orjson", "vermin", "editables")


class NotHere(RuntimeError):
    """An interpreter or a package that this machine does not have. The message is for the table."""


def make(corner: Packager | Host, folder: Path) -> Path:
    """Make a corner's environment, or use the one that is there; returns its interpreter.

    Raises:
        NotHere: there is no such interpreter, or a package does not install.
    """
    place, done = folder / corner.name, folder / corner.name / "done"
    python = place / "bin" / "python"
    if not done.is_file():
        shutil.rmtree(place, ignore_errors=True)
        _run([*_UV, "venv", "--quiet", "--python", _interpreter(corner.python), str(place)])
        for packages in _steps(corner):
            _run([*_UV, "pip", "install", "--quiet", "--python", str(python), *packages])
        done.touch()
    return python


def _steps(corner: Packager | Host) -> Sequence[Sequence[str]]:
    """The arguments of each installation. The tools of the tests come after: their lowest releases mean nothing."""
    if isinstance(corner, Host):
        return [corner.requirements]
    lowest = ["--resolution", "lowest-direct"] if corner.lowest else []
    return [[*lowest, *corner.requirements, "-e", f"{ROOT}[{_EXTRAS}]"], _TESTS]


def _interpreter(release: str) -> str:
    """The interpreter of a release: from the path, or one of pyenv's.

    Raises:
        NotHere: there is none.
    """
    of_pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{release}.*/bin/python"))
    found = [str(one) for one in of_pyenv] or [path for path in [shutil.which(f"python{release}")] if path]
    if not found:
        raise NotHere(f"no Python {release} is here")
    return found[-1]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise NotHere(f"does not install: {' '.join(said)[:200]}")
