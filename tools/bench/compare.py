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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from .commits import Side, checked_out, environment, refuse_other_code, share_costs
from .compare_child import FIGURES, Kind
from .harness import BenchmarkFailed, package, refuse_differences, tell
from .models.classifier import TokenClassifier
from .report import Result, Row, Table

SIDES = ("base", "head")
TURNS = 12
"""Slices of each side for each figure in a pair. The best one counts."""
BUSY = 0.9
_ROOT = Path(__file__).resolve().parents[2]
_CHILD = Path(__file__).with_name("compare_child.py")
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
Ask = Callable[..., dict[str, Any]]
"""A function that asks the process of a side one question."""
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
    model, config = TokenClassifier(**args), _CONFIG.format(args=json.dumps(args), input=spec)
    cache = dict.fromkeys(("XDG_CACHE_HOME", "NEURON_LSTM_CACHE"), str(folder / "cache"))  # the latter: earlier commits
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    variables = {**environment(side.root), **cache}
    package(model, config, folder, "model", "--archive-format", "no-archive", environment=variables)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def _serving(kind: Kind, side: Side, archive: Path, core: int) -> Iterator[Ask]:
    """Serve one archive by its handler in a process, and yield a function that asks it.

    The function raises `BenchmarkFailed` if the process has ended.
    """
    command = [sys.executable, str(_CHILD), kind, str(archive), str(core)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(side.root), stdin=pipe, stdout=pipe, text=True) as process:

        def ask(**question: object) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                print(json.dumps(question), file=process.stdin, flush=True)
            line = process.stdout.readline()
            if not line:
                raise BenchmarkFailed(f"the process that serves {archive} ended ({process.wait()})")
            reply: dict[str, Any] = json.loads(line)
            return reply

        try:
            yield ask
        finally:
            process.kill()


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
                served = {
                    side.name: stack.enter_context(
                        _serving(kind, side, of_sides[side.name], cores[(number + place) % len(cores)])
                    )
                    for place, side in enumerate(shuffled)
                }
                about = [served[side.name](ask="about") for side in sides]
                for checkout, facts in zip(sides, about, strict=True):
                    refuse_other_code(Path(facts["package"]), checkout)
                refuse_other_answers(*(facts["answers"] for facts in about))
                for name, best in best_of(served, FIGURES[kind], cores[number % len(cores)]).items():
                    for side, (value, share) in best.items():
                        values[name][side].append(value)
                        shares.append(share)
    return values, median(shares)


def best_of(served: Mapping[str, Ask], figures: Sequence[str], core: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the least value of each figure and side over its slices, with its share of the core.

    The two sides of a figure follow each other, and the first one changes with every turn. The turns of a figure are
    spread over the time of all figures, because other load of the machine often lasts longer than one figure.
    """
    slices: dict[str, dict[str, list[tuple[float, float]]]] = {name: {side: [] for side in served} for name in figures}
    for turn in range(TURNS):
        for name in figures:
            for side in [*served] if turn % 2 == 0 else [*served][::-1]:
                reply = served[side](ask="measure", figure=name, core=core)
                slices[name][side].append((reply["value"], reply["share"]))
    return {name: {side: min(turns) for side, turns in sides.items()} for name, sides in slices.items()}


def refuse_other_answers(base: Sequence[str], head: Sequence[str]) -> None:
    """Raise `BenchmarkFailed` if commits answer differently: errors are fast, and their time means nothing."""
    for index, answers in enumerate(zip(base, head, strict=True)):
        before, changed = (torch.tensor(json.loads(text)) for text in answers)
        refuse_differences(f"request {index} to the base and to the head", [changed], [before], _TOLERANCE)


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
