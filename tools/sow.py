"""Faults sown in the package, which the tests of `make test` must notice: `python -m tools.sow`.

Each fault of `faults.json` is a change of behaviour, written as text and its replacement. One after the other is made
in a copy of the last commit, and the tests run until one fails: those of the fault's room first, then all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Fault:
    """A change of behaviour: `old` stands once in the package, in a file of the folder `room`."""

    id: int
    room: str
    old: str
    new: str
    what: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Sow the faults that are named, or all; 1 if the tests miss one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", type=int, nargs="*", help="the faults to sow; all if none is named")
    options = parser.parse_args(arguments)
    faults = [Fault(**fault) for fault in json.loads((ROOT / "tools" / "faults.json").read_text("utf-8"))]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="sown-") as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
        for fault in faults:
            if not options.id or fault.id in options.id:
                noticed = sow(copy, fault)
                missed += noticed is None
                print(f"{fault.id}: {f'noticed by {noticed}' if noticed else 'MISSED'}: {fault.what}", flush=True)
    print(f"{missed} missed")
    return int(missed > 0)


def sow(copy: Path, fault: Fault) -> str | None:
    """Make a fault in a copy of the project, and return the test that fails; None if none does."""
    file = file_of(copy, fault)
    source = file.read_text("utf-8")
    file.write_text(source.replace(fault.old, fault.new), "utf-8")
    try:
        return failing_test(copy, f"tests/{fault.room}") or failing_test(copy)
    finally:
        file.write_text(source, "utf-8")


def file_of(copy: Path, fault: Fault) -> Path:
    """Return the file of the package with the text of a fault; raises ValueError unless it is there exactly once."""
    texts = {path: path.read_text("utf-8") for path in sorted((copy / fault.room).rglob("*.py"))}
    files = [path for path, text in texts.items() for _ in range(text.count(fault.old))]
    if len(files) != 1:
        raise ValueError(f"fault {fault.id}: its text stands {len(files)} times in {fault.room}, not once: {fault.old}")
    return files[0]


def failing_test(copy: Path, *folders: str) -> str | None:
    """Return the first test of these folders, or of all, that fails in a copy of the project."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_WAIT_POLICY": "passive", "CI": "true"}
    jobs = str((os.cpu_count() or 1) + 1)
    options = ["-q", "-x", "-n", jobs, "--dist", "loadgroup", "-m", "not ci and not long", *folders]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else None


if __name__ == "__main__":
    sys.exit(main())
