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
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from torchserve_neuron_lstm.archiver_ext.archive.file_list import renewed_list
from torchserve_neuron_lstm.config.manifest import FILE_NAME
from torchserve_neuron_lstm.handlers.neuron_lstm import LIST

from . import compare_child
from .compare_child import FIGURES, Kind
from .harness import BenchmarkFailed, in_rounds, package, refuse_differences, tell
from .models.classifier import TokenClassifier
from .report import Result, Row, Table

SIDES = ("base", "head")
TURNS = 12
"""Slices of each side for each figure in a pair. The best one counts."""
BUSY = 0.9
_ROOT = Path(__file__).resolve().parents[2]
_TOLERANCE = 1e-4
_CONFIG = """\
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
_PACKAGE = Path("src", "torchserve_neuron_lstm")
_COSTS = ("costs", "padding_costs")
"""The keys of an archive's manifest by which batches are planned."""
Ask = Callable[..., Any]
"""A function that calls another one in the process of a side."""
Archives = Mapping[Kind, Mapping[str, Path]]
"""The folder of an archive, by model and side."""
Values = Mapping[str, Mapping[str, list[float]]]
"""Values by figure and side."""


@dataclass(frozen=True)
class Side:
    """One of the two sides: `base` or `head`."""

    name: str
    commit: str
    """The description for people: the abbreviated hash and the subject."""
    root: Path
    """A checkout that nothing else writes to."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the program's options."""
    parser.add_argument("base", metavar="BASE", help="a commit")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--packagings", type=int, default=3, help="timed packagings of each (default: %(default)s)")


def measure(options: argparse.Namespace) -> Result:
    """Check out, package, compare the answers, and measure in pairs; raises `BenchmarkFailed` if they differ."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
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
        for turn, side in in_rounds(sides, times if kind == "archive" else 1):
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
    path = os.pathsep.join(filter(None, [str(side.root / "src"), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, **cache, "PYTHONPATH": path}
    package(model, config, folder, "model", "--archive-format", "no-archive", environment=variables)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@contextmanager
def _serving(kind: Kind, side: Side, archive: Path, core: int) -> Iterator[Ask]:
    """Serve one archive by its handler in a process, and yield a function that calls another one there."""
    starting = (kind, archive, side.root / "src", core)
    with ProcessPoolExecutor(1, get_context("spawn"), compare_child.start, starting) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def race(archives: Archives, sides: Sequence[Side], pairs: int) -> tuple[Values, float]:
    """Measure all figures in pairs; returns the values, and the median share of the core that the processes got.

    Each pair has new processes, so that chance properties of one (addresses, hashes) do not decide. They take short
    turns on the same core, in a random order. Raises `BenchmarkFailed` if the sides differ.
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
                about = [served[side.name](compare_child.about) for side in sides]
                for checkout, (folder, _) in zip(sides, about, strict=True):
                    refuse_other_code(folder, checkout)
                refuse_other_answers(*(answers for _, answers in about))
                for name, best in best_of(served, FIGURES[kind], cores[number % len(cores)]).items():
                    for side, (value, share) in best.items():
                        values[name][side].append(value)
                        shares.append(share)
    return values, median(shares)


def best_of(served: Mapping[str, Ask], figures: Sequence[str], core: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the least value of each figure and side over its slices, with its share of the core.

    The turns of a figure are spread over the time of all, because other load often lasts longer than one figure.
    """
    slices: dict[str, dict[str, list[tuple[float, float]]]] = {name: {side: [] for side in served} for name in figures}
    for turn in range(TURNS):
        for name in figures:
            for side in [*served] if turn % 2 == 0 else [*served][::-1]:
                slices[name][side].append(served[side](compare_child.measured, name, core))
    return {name: {side: min(turns) for side, turns in sides.items()} for name, sides in slices.items()}


def refuse_other_answers(base: Sequence[str], head: Sequence[str]) -> None:
    """Raise `BenchmarkFailed` if commits answer differently: errors are fast, and their time means nothing."""
    for index, answers in enumerate(zip(base, head, strict=True)):
        before, changed = (torch.tensor(json.loads(text)) for text in answers)
        refuse_differences(f"request {index} to the base and to the head", [changed], [before], _TOLERANCE)


def _sizes(archives: Archives) -> Values:
    """Return the sizes of the archives: their bytes, files, and lines of Python."""
    files = {side: [file for file in archives["archive"][side].rglob("*") if file.is_file()] for side in SIDES}
    sizes: dict[str, Callable[[Path], float]] = {
        "bytes": lambda file: file.stat().st_size,
        "files": lambda _: 1,
        "lines of Python": lambda file: len(file.read_bytes().splitlines()) if file.suffix == ".py" else 0,
    }
    return {name: {side: [sum(map(size, files[side]))] for side in SIDES} for name, size in sizes.items()}


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


def refuse_other_code(package: Path, side: Side) -> None:
    """Raise `BenchmarkFailed` at the first file of the package that serves an archive that is not the checkout's."""
    for file in sorted(package.rglob("*.py")):
        original = side.root / _PACKAGE / file.relative_to(package)
        if original.is_file() and file.read_bytes() != original.read_bytes():
            raise BenchmarkFailed(f"the archive made at {side.commit} is not served by that commit's {file.name}")


def share_costs(base: Path, head: Path) -> bool:
    """Give the head's archive the costs of the base's; returns whether that was possible.

    Packaging measures costs, and plans follow them: two archives of one commit may already plan differently.
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
