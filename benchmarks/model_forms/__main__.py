"""Speed of models that are traced for one request, compared with eager mode.

They are a subsampling encoder, and a loop over timesteps with a cell.

Run it on an idle machine: `python -m benchmarks.model_forms [--rounds 11]`. Exits 1 if a floor is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from torch import Tensor

from torchserve_neuron_lstm.archiver_ext.commands.timing import TimingConfig, time_interleaved
from torchserve_neuron_lstm.archiver_ext.torch_threads import on_threads
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

from ..standing import Standing, missed, standings_table
from .archive import packaged
from .models import CellLoop, Crnn

_THREADS = 2
_TOLERANCE = 1e-4  # sums of 128 products in another order
_LONGEST = 128
Run = Callable[[], list[Tensor]]
"""Answers of all requests of a batch, each without padding."""


def main() -> int:
    """Package and time both models; returns 0 if every floor holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    pace = TimingConfig(rounds=parser.parse_args().rounds)
    torch.manual_seed(0)
    lengths = _lengths(32)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        found = [*_crnn(lengths, Path(folder), pace), *_cell_loop(lengths, Path(folder), pace)]
    console = Console()
    console.print(standings_table(found))
    for line in missed(found):
        console.print(line)
    return 1 if missed(found) else 0


def _lengths(count: int) -> list[int]:
    """Log-normal lengths, the longest among them."""
    choose = random.Random(0)
    return [_LONGEST, *(max(1, min(_LONGEST, round(choose.lognormvariate(3.8, 0.7)))) for _ in range(count - 1))]


def _crnn(lengths: Sequence[int], folder: Path, pace: TimingConfig) -> list[Standing]:
    model = Crnn().eval()
    requests = [torch.randn(length, 40) for length in lengths]
    padded = torch.nn.utils.rnn.pad_sequence(requests, batch_first=True)
    sizes = torch.tensor(lengths)

    def packed() -> list[Tensor]:
        scores = model.packed(padded, sizes)
        return [row[: (length - 1) // 2 + 1] for row, length in zip(scores, lengths, strict=True)]

    seconds = _timed(
        {
            "ours": _served(packaged(model, 40, _LONGEST, folder / "crnn"), requests, lengths),
            "one by one": lambda: [model(x[None])[0] for x in requests],
            "packed": packed,
        },
        pace,
        exact={"one by one"},  # eager convolutions of a padded batch read other rows' padding as data
    )
    return [
        Standing("CRNN: times faster than eager, one by one", seconds["one by one"] / seconds["ours"], 3.0, 6.0),
        Standing("CRNN: times faster than eager, packed", seconds["packed"] / seconds["ours"], 1.2, 2.0),
    ]


def _cell_loop(lengths: Sequence[int], folder: Path, pace: TimingConfig) -> list[Standing]:
    model = CellLoop().eval()
    requests = [torch.randn(length, 128) for length in lengths]
    padded = torch.nn.utils.rnn.pad_sequence(requests, batch_first=True)

    def looped() -> list[Tensor]:
        return [row[:length] for row, length in zip(model(padded), lengths, strict=True)]

    ours = _served(packaged(model, 128, _LONGEST, folder / "loop"), requests, lengths)
    seconds = _timed({"ours": ours, "loop": looped}, pace, exact={"loop"})
    times = seconds["loop"] / seconds["ours"]
    return [Standing("LSTMCell in a loop: times faster than eager, padded", times, 3.0, 10.0)]


def _served(archive: Path, requests: Sequence[Tensor], lengths: Sequence[int]) -> Run:
    """Plan and run as a worker does."""
    loaded = load_archive(archive, _THREADS)
    serving = torch.get_num_threads()  # as the engine set it

    def run() -> list[Tensor]:
        answers, _ = loaded.run_plan(loaded.plan(lengths), [[x] for x in requests], lengths)
        return [answer[0] for answer in answers]

    return on_threads(serving, run)


def _timed(runs: dict[str, Run], pace: TimingConfig, exact: set[str]) -> dict[str, float]:
    """Return the median seconds of each, after our answers were compared with those of eager mode.

    Raises:
        RuntimeError: they differ.
    """
    ours = runs["ours"]()
    for name in exact:
        for mine, theirs in zip(ours, runs[name](), strict=True):
            if not torch.allclose(mine, theirs, _TOLERANCE, _TOLERANCE):
                raise RuntimeError(f"our answers differ from eager, {name}")
    calls = {name: run if name == "ours" else on_threads(_THREADS, run) for name, run in runs.items()}
    return {name: median(times) for name, times in time_interleaved(calls, pace).items()}


if __name__ == "__main__":
    sys.exit(main())
