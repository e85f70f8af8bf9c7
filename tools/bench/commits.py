"""Checkouts and archives of the two commits of a comparison."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .harness import BenchmarkFailed

PACKAGE = "torchserve_neuron_lstm"
_COSTS = ("costs", "padding_costs")
"""The keys of an archive's description by which batches are planned."""


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
    commit = _git(repository, "rev-parse", "--verify", "--end-of-options", f"{base}^{{commit}}")
    index = str(folder / "index")  # so that git's stays as it is
    for words in (("read-tree", "HEAD"), ("add", "--all")):
        _git(repository, *words, index=index)
    trees = {"base": commit, "head": _git(repository, "write-tree", index=index)}
    for name, tree in trees.items():
        _git(repository, "archive", "--output", str(folder / f"{name}.tar"), tree)
        shutil.unpack_archive(folder / f"{name}.tar", folder / name, filter="data")
    subject = _git(repository, "log", "-1", "--format=%h %s", commit)
    return Side("base", subject, folder / "base"), Side("head", "the working tree", folder / "head")


def _git(repository: Path, *arguments: str, index: str | None = None) -> str:
    environment = {**os.environ, **({} if index is None else {"GIT_INDEX_FILE": index})}
    done = subprocess.run(
        ["git", *arguments], cwd=repository, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchmarkFailed(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def environment(root: Path) -> dict[str, str]:
    """Return the environment in which the package of a checkout comes first."""
    path = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH")]))
    return {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": path}


def refuse_other_code(archive: Path, side: Side) -> None:
    """Raise `BenchmarkFailed` at the first of an archive's files of the package that is not the checkout's."""
    carried, checkout = archive / PACKAGE, side.root / "src" / PACKAGE
    names = [file.relative_to(carried) for file in sorted(carried.rglob("*.py"))]
    both = [name for name in names if (checkout / name).is_file()]
    if not both:
        raise BenchmarkFailed(f"the archive made at {side.commit} holds no file of its package")
    for name in both:
        if (carried / name).read_bytes() != (checkout / name).read_bytes():
            raise BenchmarkFailed(f"the archive made at {side.commit} does not hold that commit's {name}")


def share_costs(base: Path, head: Path) -> bool:
    """Give the head's archive the costs measured for the base's archive, so that both make the same plans.

    Returns whether that was possible. Packaging measures costs, and plans follow them: two archives of one commit may
    already plan differently.
    """
    files = [_description(archive) for archive in (head, base)]
    ours, theirs = (json.loads(file.read_text("utf-8")) for file in files)
    if any(_measured(ours, key) is None or _measured(ours, key) != _measured(theirs, key) for key in _COSTS):
        return False
    ours.update({key: theirs[key] for key in _COSTS})
    former = hashlib.sha256(files[0].read_bytes()).hexdigest()
    files[0].write_text(json.dumps(ours, indent=2) + "\n", "utf-8")
    _replace_digest(head / "SHA256SUMS", former, hashlib.sha256(files[0].read_bytes()).hexdigest())
    return True


def _description(archive: Path) -> Path:
    """Return the file of an archive that has the measured costs, whose name differs by commit."""
    for file in sorted(archive.glob("*.json")):
        if _COSTS[0] in json.loads(file.read_text("utf-8")):
            return file
    raise BenchmarkFailed(f"{archive} has no description with {_COSTS[0]}")


def _replace_digest(file: Path, former: str, digest: str) -> None:
    """Write the list of an archive's files again; its first line has the sha256 of all lines below it."""
    first, _, rest = file.read_text("utf-8").partition("\n")
    changed = rest.replace(former, digest)
    before, after = (hashlib.sha256(text.encode()).hexdigest() for text in (rest, changed))
    file.write_text(f"{first.replace(before, after)}\n{changed}", "utf-8")


def _measured(description: dict[str, Any], key: str) -> list[dict[str, Any]] | None:
    """Return what was measured, without the times; None if that is not known."""
    costs = description.get(key)
    if not isinstance(costs, list) or not all(isinstance(cost, dict) and "milliseconds" in cost for cost in costs):
        return None
    return [{name: value for name, value in cost.items() if name != "milliseconds"} for cost in costs]
