"""A target that is fuzzed for a time: its processes, started again when one ends before its time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .corpus import CORPUS, kept_directories
from .findings import read_causes
from .progress import runs_of, shown_progress

ROOT = Path(__file__).resolve().parents[1]
LONGEST_INPUT = 16_384
"""Bytes: two lists that are nested beyond the limit of recursion."""
MOST_SECONDS = 60
"""Time of one input, after which libFuzzer ends the process: a busy host stops at times."""
MOST_MEGABYTES = 4096
MOST_STARTS = 20
"""Processes of one target: if each ends early, the cause is to be repaired first."""

SECONDS_BETWEEN_LINES = 10.0
"""Time between two lines of progress."""


@dataclass(frozen=True)
class Budget:
    """The bounds of one target's campaign."""

    seconds: float
    runs: int | None = None
    """None: the time alone ends it."""
    seed: int = 0


@dataclass(frozen=True)
class TargetResult:
    """The outcome of one target's campaign."""

    runs: int
    seconds: float
    causes: dict[str, str]
    """The cause of each input that violates a property, by its file's name."""


def environment() -> dict[str, str]:
    """Return the environment of processes that import the targets."""
    path = os.pathsep.join(str(ROOT / part) for part in (".", "src", "tests/support"))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def fuzz_target(target: str, budget: Budget, corpus: Path, findings: Path, tell: Callable[[str], None]) -> TargetResult:
    """Fuzz one target; new inputs go to `corpus`, those that violate a property to `findings`.

    `tell` receives lines of the progress.
    """
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    began, runs, start = time.monotonic(), 0, 0
    while start < MOST_STARTS:
        seconds = round(budget.seconds - (time.monotonic() - began))
        wanted = None if budget.runs is None else budget.runs - runs
        if (start and seconds < 1) or (wanted is not None and wanted <= 0):
            break
        options = [
            f"-max_total_time={max(1, seconds)}",
            *([f"-runs={wanted}"] if wanted is not None else []),
            f"-seed={budget.seed + start + 1}",
            f"-artifact_prefix={findings}{os.sep}",
        ]
        ran, ended_well = _run(target, options, [corpus, *kept_directories(target)], findings, tell)
        runs, start = runs + ran, start + 1
        if ended_well:
            break
    return TargetResult(runs, time.monotonic() - began, read_causes(findings))


def merge(target: str, corpus: Path, smallest: Path) -> None:
    """Copy to `smallest` the fewest inputs that reach as much as those of `corpus` and the kept ones.

    Raises:
        RuntimeError: the process failed; with the end of what it wrote.
    """
    smallest.mkdir(parents=True, exist_ok=True)
    folders = [smallest, CORPUS / target, corpus]
    # Without counters: places that are reached, not how often, which would keep five times as much.
    command = _command(target, smallest.parent / "findings", corpus, ["-merge=1", "-use_counters=0"], folders)
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode or not any(smallest.iterdir()):
        raise RuntimeError(f"the corpus of {target} could not be merged:\n{done.stderr[-2000:]}")


def _run(
    target: str, options: Sequence[str], corpora: Sequence[Path], findings: Path, tell: Callable[[str], None]
) -> tuple[int, bool]:
    """Run one process; returns the inputs that it ran, and whether it ended by its options."""
    runs, last_told = 0, 0.0
    rest: list[str] = []
    with subprocess.Popen(
        _command(target, findings, corpora[0], [*options, "-print_final_stats=1"], corpora),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            rest = [*rest[-29:], line]
            runs = max(runs, runs_of(line) or 0)
            told = shown_progress(line)
            if told and time.monotonic() - last_told >= SECONDS_BETWEEN_LINES:
                last_told = time.monotonic()
                tell(f"{target}: {told}")
    if runs == 0:
        raise RuntimeError(f"the fuzzer of {target} did not start:\n{''.join(rest)}")
    return runs, process.returncode == 0


def _command(target: str, findings: Path, corpus: Path, options: Sequence[str], corpora: Sequence[Path]) -> list[str]:
    fixed = [
        f"-max_len={LONGEST_INPUT}",
        f"-timeout={MOST_SECONDS}",
        f"-report_slow_units={MOST_SECONDS}",
        f"-rss_limit_mb={MOST_MEGABYTES}",
        "-len_control=0",
    ]
    words = [sys.executable, "-m", "fuzz.guided", target, str(findings), str(corpus), *fixed, *options]
    return [*words, *(str(directory) for directory in corpora if directory.is_dir())]
