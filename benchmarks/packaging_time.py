"""Time of packaging in 25 buckets with `backend: auto`: the first, and those after a change.

Run from the repository's root: `python -m benchmarks.packaging_time [--json FILE]`. The model is the token classifier
of the REST benchmark. Every packaging is the command `neuron-lstm archive` in a separate process; the cache of
compiled programs begins empty, in a folder of this run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .packaging import CannotArchive
from .rest import model as rest_model

CONFIG = """\
minWorkers: 1
maxWorkers: 1
batchSize: {batch_size}
maxBatchDelay: 5
neuron_lstm:
  inputs: {{ids: {{dtype: int64, shape: [batch, time]}}}}
  lengths: lengths
  outputs: [scores]
  buckets: {{batch: [1, 4, 8, 16, 32], length: {lengths}}}
  backend: auto
"""
LENGTHS = [16, 32, 64, 96, 128]
FIRST_S, AGAIN_S = 40.0, 10.0
"""Floors in seconds, on two cores that nothing else uses."""


@dataclass(frozen=True)
class Packaging:
    """One packaging: what was changed before it, its time, and what it reported."""

    change: str
    seconds: float
    cpu_seconds: float
    """CPU time of all its processes, which other work on the machine changes less."""
    compiled: int
    """Programs of the compared engines that were compiled, not copied from the cache."""
    backend: str
    floor_s: float

    @property
    def is_fast_enough(self) -> bool:
        """Whether the floor is kept."""
        return self.seconds <= self.floor_s


def main() -> None:
    """Package, change the files and package again; exits with 1 if a floor is missed."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="packaging-") as folder:
        results = measure(Path(folder))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n", encoding="utf-8")
    missed = [one.change for one in results if not one.is_fast_enough]
    sys.exit(f"more than the floor: {', '.join(missed)}" if missed else 0)


def measure(folder: Path) -> list[Packaging]:
    """Package after each change, and print a line for each."""
    shutil.copy(rest_model.__file__, folder / "model.py")
    changes: dict[str, tuple[Callable[[], object], float]] = {
        "first": (lambda: _write(folder), FIRST_S),
        "other weights": (lambda: _write(folder, seed=1), AGAIN_S),
        "batchSize 16": (lambda: _write(folder, seed=1, batch_size=16), AGAIN_S),
        "a length of 80 more": (lambda: _write(folder, seed=1, lengths=[*LENGTHS[:3], 80, *LENGTHS[3:]]), AGAIN_S),
    }
    results = []
    for change, (apply, floor_s) in changes.items():
        apply()
        results.append(_package(folder, change, floor_s))
        print(_sentence(results[-1]), flush=True)
    return results


def _write(folder: Path, seed: int = 0, batch_size: int = 32, lengths: list[int] = LENGTHS) -> None:
    torch.manual_seed(seed)
    torch.save(rest_model.TokenClassifier().state_dict(), folder / "weights.pt")
    (folder / "model-config.yaml").write_text(CONFIG.format(batch_size=batch_size, lengths=lengths))


def _package(folder: Path, change: str, floor_s: float) -> Packaging:
    words = "archive --model-name classifier --version 1.0 --model-file model.py --serialized-file weights.pt"
    more = "--config-file model-config.yaml --archive-format no-archive --export-path . --force --json"
    command = [str(Path(sys.executable).with_name("neuron-lstm")), *words.split(), *more.split()]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ, "NEURON_LSTM_CACHE": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise CannotArchive(f"packaging the token classifier failed:\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return Packaging(
        change,
        seconds,
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        sum(not program["cached"] for engine in report["engines"] for program in engine["programs"]),
        report["backend"],
        floor_s,
    )


def _sentence(one: Packaging) -> str:
    return (
        f"{one.change}: {one.seconds:.1f} s (at most {one.floor_s:.0f}), {one.cpu_seconds:.1f} s of CPU time; "
        f"{one.compiled} programs compiled, {one.backend} packaged"
    )


if __name__ == "__main__":
    main()
