"""Checkouts and archives of the two commits of a comparison."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchserve_neuron_lstm.archiver_ext.archive.file_list import renewed_list
from torchserve_neuron_lstm.config.manifest import FILE_NAME
from torchserve_neuron_lstm.handlers.neuron_lstm import LIST

from .harness import BenchmarkFailed

_PACKAGE = Path("src", "torchserve_neuron_lstm")
_COSTS = ("costs", "padding_costs")
"""The keys of an archive's manifest by which batches are planned."""


@dataclass(frozen=True)
class Side:
    """One of the two sides: `base` or `head`."""

    name: str
    commit: str
    """The description for people: the abbreviated hash and the subject."""
    root: Path
    """A checkout that nothing else writes to."""


def checked_out(repository: Path, base: str, folder: Path) -> tuple[Side, Side]:
    """Write the base, or raise `BenchmarkFailed`, and what git has or would add of the working tree, to `folder`."""

    def git(*words: str) -> str:
        environment = {**os.environ, "GIT_INDEX_FILE": str(folder / "index")}  # so that git's stays as it is
        done = subprocess.run(
            ["git", *words], cwd=repository, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BenchmarkFailed(f"git {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    commit = git("rev-parse", "--verify", "--end-of-options", f"{base}^{{commit}}")
    git("read-tree", "HEAD")
    git("add", "--all")
    for name, tree in (("base", commit), ("head", git("write-tree"))):
        git("archive", "--output", str(folder / f"{name}.tar"), tree)
        shutil.unpack_archive(folder / f"{name}.tar", folder / name, filter="data")
    subject = git("log", "-1", "--format=%h %s", commit)
    return Side("base", subject, folder / "base"), Side("head", "the working tree", folder / "head")


def environment(root: Path) -> dict[str, str]:
    """Return the environment in which the package of a checkout comes first."""
    path = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH")]))
    return {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": path}


def refuse_other_code(package: Path, side: Side) -> None:
    """Raise `BenchmarkFailed` at the first file of the package that serves an archive that is not the checkout's."""
    for file in sorted(package.rglob("*.py")):
        original = side.root / _PACKAGE / file.relative_to(package)
        if original.is_file() and file.read_bytes() != original.read_bytes():
            raise BenchmarkFailed(f"the archive made at {side.commit} is not served by that commit's {file.name}")


def share_costs(base: Path, head: Path) -> bool:
    """Give the head's archive the costs measured for the base's archive, so that both make the same plans.

    Returns whether that was possible. Packaging measures costs, and plans follow them: two archives of one commit may
    already plan differently.
    """
    manifest = head / FILE_NAME
    ours = json.loads(manifest.read_text("utf-8"))
    try:
        theirs = json.loads((base / FILE_NAME).read_text("utf-8"))
        alike = _measured(ours) == _measured(theirs)
    except (OSError, KeyError, TypeError):  # another layout
        return False
    if alike:
        manifest.write_text(json.dumps({**ours, **{key: theirs[key] for key in _COSTS}}, indent=2) + "\n", "utf-8")
        (head / LIST).write_bytes(renewed_list((head / LIST).read_bytes(), {FILE_NAME: manifest})[0])
    return alike


def _measured(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was measured, without the times."""
    return [{**cost, "milliseconds": 0} for key in _COSTS for cost in manifest[key]]
