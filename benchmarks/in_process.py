"""Many sequences in one process: `open_archive(...).predict` against eager mode and its engine.

Run from the repository's root: `python -m benchmarks.in_process [--sequences 10000] [--rounds 5] [--json FILE]`; about
three minutes on two cores. Exits 1 if a floor is missed; the last lines name it.

10,000 sequences of tokens, of log-normal lengths, are given as lists in random order to each contestant:

- predict: the whole list at once.
- eager packed: batches of 32 as they come, padded, packed and run by the model as written.
- engine: the programs alone, for windows of tensors that were read and planned before.

They take turns, round after round. Answers are compared with eager mode first.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch.nn.utils.rnn import pad_sequence

from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.inference.open_archive import OpenArchive
from torchserve_neuron_lstm.inference.windows import windows

from .ragged.cases import log_normal
from .rest.archives import OURS, make_archives, make_model
from .rest.model import TokenClassifier
from .standing import Standing, conclude, plain_table, standings_json, standings_table, write_figures

TOKENS = 10_000
BATCH = 32
_PREDICT, _EAGER, _ENGINE = "predict", "eager packed", "engine"
_CHECKED = 64
Run = Callable[[], object]


def main() -> int:
    """Measure and report. Returns the exit code."""
    options = _options()
    sequences = random_sequences(options.sequences)
    model = make_model()
    with tempfile.TemporaryDirectory(prefix="in-process-") as folder:
        make_archives(model, Path(folder), 1, BATCH, 1, options.backend, [OURS])
        with open_archive(Path(folder) / f"{OURS}.mar") as opened:
            error = _largest_error(opened, model, sequences[:_CHECKED])
            seconds = _race(_contestants(opened, model, sequences), options.rounds)
    standing = standings({name: median(own) for name, own in seconds.items()}, error)
    _print({name: median(own) for name, own in seconds.items()}, sequences, standing)
    write_figures({"seconds": seconds, "floors": standings_json(standing)}, options.json)
    return conclude(standing)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.in_process",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sequences", type=int, default=10_000, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of the archive (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def random_sequences(count: int) -> list[list[int]]:
    """Lists of tokens, of log-normal lengths, the same in every run."""
    rng = torch.Generator().manual_seed(0)
    return [torch.randint(TOKENS, (length,), generator=rng).tolist() for length in log_normal(count, random.Random(0))]


def standings(seconds: dict[str, float], error: float) -> list[Standing]:
    """Return the standings of what has a floor.

    >>> [one.reached for one in standings({"predict": 1.0, "eager packed": 3.1, "engine": 0.91}, 1e-6)]
    ['aim', 'floor', 'aim']
    """
    predict = seconds[_PREDICT]
    return [
        Standing("times faster than eager packed", seconds[_EAGER] / predict, 2.2, 3.0),
        Standing("rate, as a part of the engine's own", seconds[_ENGINE] / predict, 0.9, 0.95),
        Standing("largest error, in units of 1e-5 + 1e-5 |eager|", error, 1.0, 1.0, "less"),
    ]


def _contestants(opened: OpenArchive, model: TokenClassifier, sequences: Sequence[list[int]]) -> dict[str, Run]:
    loaded = opened.loaded
    planned = []
    for window in windows([len(ids) for ids in sequences]):
        lengths = tuple(len(sequences[index]) for index in window)
        planned.append((loaded.plan(lengths), [(torch.tensor(sequences[index]),) for index in window], lengths))
    return {
        _PREDICT: lambda: opened.predict(sequences),
        _EAGER: lambda: eager_packed(model, sequences),
        _ENGINE: lambda: [loaded.run_plan(*one) for one in planned],
    }


@torch.inference_mode()
def eager_packed(model: TokenClassifier, sequences: Sequence[list[int]]) -> list[list[float]]:
    """Answer batches of 32 as they come, by the model as it is written."""
    answers: list[list[float]] = []
    for start in range(0, len(sequences), BATCH):
        tensors = [torch.tensor(ids) for ids in sequences[start : start + BATCH]]
        lengths = torch.tensor([len(ids) for ids in tensors])
        answers += model(pad_sequence(tensors, batch_first=True), lengths).tolist()
    return answers


def _largest_error(opened: OpenArchive, model: TokenClassifier, sequences: Sequence[list[int]]) -> float:
    expected = torch.tensor(eager_packed(model, sequences))
    found = torch.tensor(opened.predict(sequences))
    return float(((found - expected).abs() / (1e-5 + 1e-5 * expected.abs())).max())


def _race(contestants: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant, one value per round; each round begins with another contestant."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        names = list(contestants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            started = time.perf_counter()
            contestants[name]()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    return seconds


def _print(seconds: dict[str, float], sequences: Sequence[list[int]], standing: list[Standing]) -> None:
    table = plain_table(f"{len(sequences):,} sequences, {sum(map(len, sequences)):,} timesteps")
    for heading in ("", "s", "sequences/s", "timesteps/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, own in seconds.items():
        timesteps = sum(map(len, sequences)) / own
        table.add_row(name, f"{own:.2f}", f"{len(sequences) / own:,.0f}", f"{timesteps:,.0f}")
    Console().print(table)
    Console().print(standings_table(standing))


if __name__ == "__main__":
    raise SystemExit(main())
