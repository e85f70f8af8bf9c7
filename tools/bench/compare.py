"""`make bench-compare BASE=...`: requests, archives and packaging compared with another commit.

The head is the working tree as it stands. Both sides package the same models and serve their archives in turns, in this
one Python environment, each by its code. Nothing of the other commit's tools is used, only what users see: the command
`neuron-lstm archive`, model-config.yaml, and the handler in the archive. Ratios are head to base.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from threading import Timer
from typing import Any

import torch
from typing_extensions import Self

from .commits import PACKAGE, Side, checked_out, environment, refuse_other_code, share_costs
from .compare_child import FIGURES, Kind
from .harness import BenchmarkFailed, package, tell
from .models.classifier import TokenClassifier
from .report import Result, Row, Table

SIDES = ("base", "head")
TURNS = 12
"""Slices of each side for each figure in a pair. The best one counts."""
BUSY = 0.9
_ROOT = Path(__file__).resolve().parents[2]
_CHILD = Path(__file__).with_name("compare_child.py")
_REPLY_SECONDS = 120
_TOLERANCE = 1e-4
_CONFIG = """\
minWorkers: 1
maxWorkers: 1
batchSize: 32
maxBatchDelay: 2
neuron_lstm:
  model: {{args: {args}}}
  inputs: {{ids: {input}}}
  lengths: lengths
  outputs: [scores]
  buckets: {{batch: [1, 8, 32], length: [16, 64, 128]}}
  backend: native
"""
_TOKENS, _FRAMES = "{dtype: int64, shape: [batch, time]}", "{dtype: float32, shape: [batch, time, 128]}"
_MODELS: Mapping[Kind, tuple[dict[str, int], str]] = {
    "tokens": ({"tokens": 1000, "features": 4, "hidden": 4, "layers": 1}, _TOKENS),
    "frames": ({"tokens": 0, "features": 128, "hidden": 4, "layers": 1}, _FRAMES),
    "archive": ({"tokens": 1000, "features": 64, "hidden": 128}, _TOKENS),
}
"""The arguments and the input of each model that both commits package."""
Archives = Mapping[Kind, Mapping[str, Path]]
"""The folder of an archive, by model and side."""
Values = Mapping[str, Mapping[str, list[float]]]
"""Values by figure and side."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the program's options."""
    parser.add_argument("base", metavar="BASE", help="a commit")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--packagings", type=int, default=3, help="timed packagings of each (default: %(default)s)")


def measure(options: argparse.Namespace) -> Result:
    """Check out, package, compare the answers, and measure in pairs; raises `BenchmarkFailed` if they differ."""
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        sides = checked_out(_ROOT, options.base, Path(name))
        archives, packagings = _packaged(sides, Path(name), options.packagings)
        values, share = race(archives, sides, options.pairs)
        tables = [
            Table(f"CPU time of a request in us, {options.pairs} pairs", [*_rows(values)]),
            Table("The archive of a token classifier, and its packaging", [*_rows({**packagings, **_sizes(archives)})]),
        ]
    notes = [f"{side.name}: {side.commit}" for side in sides]
    if share < BUSY:
        notes.append(f"The machine was busy: the processes got {share:.0%} of their core's time.")
    return Result(tables, notes)


def _packaged(sides: Sequence[Side], folder: Path, times: int) -> tuple[Archives, Values]:
    """Package all models at both sides; that of `archive` several times in turns, with an empty cache each time."""
    archives: dict[Kind, dict[str, Path]] = {kind: {} for kind in _MODELS}
    taken: dict[str, dict[str, list[float]]] = {
        what: {side: [] for side in SIDES} for what in ("seconds of packaging", "CPU seconds of packaging")
    }
    for kind in _MODELS:
        for turn in range(times if kind == "archive" else 1):
            for side in sides if turn % 2 == 0 else sides[::-1]:
                tell(f"packaging {kind} with the code of the {side.name}")
                place = folder / f"{side.name}-{kind}-{turn}"
                seconds = _package(kind, side, place)
                archives[kind][side.name] = place / "model"
                refuse_other_code(place / "model", side)
                if kind == "archive":
                    for values, value in zip(taken.values(), seconds, strict=True):
                        values[side.name].append(value)
        if not share_costs(archives[kind]["base"], archives[kind]["head"]):
            tell("the archives state their costs differently: each plans by those measured for itself")
    return archives, taken


def _package(kind: Kind, side: Side, folder: Path) -> tuple[float, float]:
    """Return seconds, and those of CPU time of all processes, which other work on the machine changes less."""
    args, spec = _MODELS[kind]
    folder.mkdir()
    torch.manual_seed(0)
    torch.save(TokenClassifier(**args).state_dict(), folder / "weights.pt")
    shutil.copy(Path(__file__).parent / "models" / "classifier.py", folder / "model.py")
    (folder / "model.yaml").write_text(_CONFIG.format(args=json.dumps(args), input=spec))
    cache = dict.fromkeys(("XDG_CACHE_HOME", "NEURON_LSTM_CACHE"), str(folder / "cache"))  # the latter: earlier commits
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    package(folder, "model", "--archive-format", "no-archive", environment={**environment(side.root), **cache})
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Child:
    """A process that serves one archive by its handler, and measures it on request."""

    def __init__(self, kind: Kind, root: Path, archive: Path, core: int) -> None:
        self._archive = archive
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD), kind, str(archive), str(core)],
            env=environment(root),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def answers(self) -> list[str]:
        """Return the answers to all requests; raises `BenchmarkFailed` if the code is not the archive's."""
        about = self._ask({"ask": "about"})
        expected = [str((self._archive / name).resolve()) for name in ("neuron_lstm.py", PACKAGE)]
        if about["code"] != expected:
            raise BenchmarkFailed(f"the archive {self._archive} is served by {about['code']}: not its code")
        answers: list[str] = about["answers"]
        return answers

    def measure(self, figure: str, core: int) -> tuple[float, float]:
        """Return CPU microseconds of a request, and the share of the core; raises `BenchmarkFailed` with the output."""
        reply = self._ask({"ask": "measure", "figure": figure, "core": core})
        return reply["value"], reply["share"]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = Timer(_REPLY_SECONDS, self._process.kill)
        limit.start()
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            limit.cancel()
        if not line:
            self._process.kill()
            code = self._process.wait()
            self._stderr.seek(0)
            raise BenchmarkFailed(f"the process that serves {self._archive} ended ({code}):\n{self._stderr.read()}")
        reply: dict[str, Any] = json.loads(line)
        return reply


def race(archives: Archives, sides: Sequence[Side], pairs: int) -> tuple[Values, float]:
    """Measure all figures in pairs.

    Returns the values, and the median share of the core that the processes got.

    Each pair has new processes, so that chance properties of one (addresses, hashes) do not decide. They take short
    turns on the same core, in a random order. Raises `BenchmarkFailed` if one fails, or the sides differ.
    """
    values: dict[str, dict[str, list[float]]] = {
        name: {side: [] for side in SIDES} for names in FIGURES.values() for name in names
    }
    shares: list[float] = []
    cores = sorted(os.sched_getaffinity(0))
    order = random.Random(0)
    for number in range(pairs):
        tell(f"pair {number + 1} of {pairs}")
        for kind, of_sides in archives.items():
            shuffled = order.sample([*sides], len(sides))
            with ExitStack() as stack:
                children = {
                    side.name: stack.enter_context(
                        Child(kind, side.root, of_sides[side.name], cores[(number + place) % len(cores)])
                    )
                    for place, side in enumerate(shuffled)
                }
                refuse_other_answers(*(children[side].answers() for side in SIDES))
                for name, best in best_of(children, FIGURES[kind], cores[number % len(cores)]).items():
                    for side, (value, share) in best.items():
                        values[name][side].append(value)
                        shares.append(share)
    return values, median(shares)


def best_of(
    children: Mapping[str, Child], figures: Sequence[str], core: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the least value of each figure and side over its slices, with its share of the core.

    The two sides of a figure follow each other, and the first one changes with every turn. The turns of a figure are
    spread over the time of all figures, because other load of the machine often lasts longer than one figure.
    """
    slices: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {side: [] for side in children} for name in figures
    }
    for turn in range(TURNS):
        for name in figures:
            for side in [*children] if turn % 2 == 0 else [*children][::-1]:
                slices[name][side].append(children[side].measure(name, core))
    return {name: {side: min(turns) for side, turns in sides.items()} for name, sides in slices.items()}


def refuse_other_answers(base: Sequence[str], head: Sequence[str]) -> None:
    """Raise `BenchmarkFailed` if commits answer differently: errors are fast, and their time means nothing."""
    for index, (before, changed) in enumerate(zip(base, head, strict=True)):
        if not _are_close(before, changed):
            raise BenchmarkFailed(
                f"request {index} is answered {before[:500]} by the base, {changed[:500]} by the head"
            )


def _are_close(before: str, changed: str) -> bool:
    ours, theirs = (torch.tensor(json.loads(text)) for text in (before, changed))
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=_TOLERANCE, atol=_TOLERANCE)


def _sizes(archives: Archives) -> Values:
    """Return the sizes of the archives: their bytes, files, and lines of Python."""
    sizes: dict[str, dict[str, list[float]]] = {"bytes": {}, "files": {}, "lines of Python": {}}
    for side in SIDES:
        files = [file for file in archives["archive"][side].rglob("*") if file.is_file()]
        code = [file.read_bytes() for file in files if file.suffix == ".py"]
        sizes["bytes"][side] = [sum(file.stat().st_size for file in files)]
        sizes["files"][side] = [len(files)]
        sizes["lines of Python"][side] = [sum(len(text.splitlines()) for text in code)]
    return sizes


def _rows(values: Values) -> Iterator[Row]:
    """Yield medians, and the median of the ratios of the pairs, with two ratios that half of them are between."""
    for name, sides in values.items():
        ratios = [head / base for base, head in zip(sides["base"], sides["head"], strict=True)]
        figures: dict[str, float | str] = {side: median(sides[side]) for side in SIDES}
        figures["ratio"] = f"{median(ratios):.3f}"
        if len(ratios) > 3:
            low, _, high = quantiles(ratios, n=4)
            figures["half of the ratios"] = f"{low:.3f} to {high:.3f}"
        yield Row(name, "", figures, ratios)
