"""`make bench-backward`: the cost of packing in training, in eager mode and in a lowered model.

In setup A all rows have T timesteps; in setup B they have T, T - 1, ..., 1, repeated. All implementations have the same
parameters. Logits and gradients are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm import lower

from .harness import device_seconds, host_seconds, ratio, refuse_differences, take_turns, tell
from .report import Result, Row, Table

SETUPS = ("A", "B")
"""Without padding, and with padding."""
PASSES = ("forward", "forward and backward")
PACKED, MASKED, OURS, COMPILED = "pack/unpack", "pad and mask", "lower", "lower, compiled"
BATCH = 512
_PADDING = 0
"""The id of the padding."""


class Batch(NamedTuple):
    """Inputs of a model and its targets."""

    ids: Tensor
    """int64[B, T]."""
    lengths: Tensor
    """int64[B] on the CPU, the longest first."""
    target: Tensor
    """int64[B]."""


class Classifier(nn.Module):
    """A classifier: embedding 10 x 16, LSTM 16 -> 32, linear to two classes, summed over all timesteps."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16, padding_idx=_PADDING)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.linear = nn.Linear(32, 2)

    def forward(self, ids: Tensor, lengths: Tensor, packs: bool) -> Tensor:
        """Logits float32[B, 2]; the states on padding are zeros, by packing or by a mask."""
        x = self.embedding(ids)
        states = self._packed(x, lengths) if packs else self.lstm(x)[0] * (ids != _PADDING).unsqueeze(2)
        logits: Tensor = self.linear(states)
        return logits.sum(1)

    def _packed(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, padding_value=_PADDING)
        return states


@dataclass(frozen=True)
class Contestant:
    """A view of the model, and whether it packs."""

    model: nn.Module
    packs: bool

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(self.model(batch.ids, batch.lengths, self.packs), batch.target)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the program's options."""
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256], metavar="T", help="timesteps")
    parser.add_argument("--rounds", type=int, default=11, help="rounds at most (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=BATCH, help="rows of a batch (default: %(default)s)")


def measure(options: argparse.Namespace) -> Result:
    """Compare and time all lengths on the CPU."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    compiles = any(map(shutil.which, ("g++", "clang++", "c++")))
    notes = [] if compiles else ["nothing is compiled: there is no C++ compiler"]
    rows = [*rows_of(options.lengths, options.batch, torch.device("cpu"), options.rounds, compiles=compiles)]
    return Result([Table(f"Training, batches of {options.batch}", rows)], notes)


def rows_of(lengths: Sequence[int], batch: int, device: torch.device, rounds: int, *, compiles: bool) -> Iterator[Row]:
    """Measure each setup in each pass, for each length; raises `BenchmarkFailed` if one differs from packing."""
    torch.manual_seed(0)
    model = Classifier().to(device)
    ways = {PACKED: Contestant(model, True), MASKED: Contestant(model, False), OURS: Contestant(lower(model), True)}
    if compiles:
        ways[COMPILED] = Contestant(torch.compile(lower(model), dynamic=True), True)  # type: ignore[arg-type]  # of a module, torch.compile makes one
    timer = host_seconds if device.type == "cpu" else device_seconds
    for setup in SETUPS:
        for which in PASSES:
            for longest in lengths:
                tell(f"measuring setup {setup}, {which}, T={longest}")
                made = make_batch(setup, longest, batch, device)
                check(ways, made)
                calls = {name: partial(_run, way, made, backward=which != "forward") for name, way in ways.items()}
                seconds = take_turns(calls, timer, rounds, slice_s=0.04, limit_s=6.0)
                for name, taken in seconds.items():
                    figures: dict[str, float | str] = {"T": str(longest), "ms": 1000 * median(taken)}
                    figures["speedup over packing"] = ratio(seconds[PACKED], taken)
                    yield Row(f"{setup}, {which}", name, figures, taken)


def row_lengths(setup: str, longest: int, rows: int) -> list[int]:
    """Return the timesteps of each row.

    >>> row_lengths("A", 3, 5), row_lengths("B", 3, 5)
    ([3, 3, 3, 3, 3], [3, 3, 2, 2, 1])
    """
    if setup == "A":
        return [longest] * rows
    return sorted((longest - row % longest for row in range(rows)), reverse=True)


def make_batch(setup: str, longest: int, rows: int, device: torch.device) -> Batch:
    """Return a batch of random ids, right-padded, and random classes, the same ones every time."""
    generator, lengths = torch.Generator().manual_seed(0), torch.tensor(row_lengths(setup, longest, rows))
    ids = torch.randint(1, 10, (rows, longest), generator=generator)
    target = torch.randint(0, 2, (rows,), generator=generator)
    ids = torch.where(torch.arange(longest) < lengths[:, None], ids, _PADDING)
    return Batch(ids.to(device), lengths, target.to(device))


def _run(way: Contestant, batch: Batch, *, backward: bool) -> None:
    with torch.set_grad_enabled(backward):
        loss = way.loss(batch)
    if backward:
        way.model.zero_grad()
        loss.backward()


def check(ways: Mapping[str, Contestant], batch: Batch) -> None:
    """Check that all contestants have the logits and the gradients of packing; raises `BenchmarkFailed` otherwise.

    In float32, sums of 100,000 numbers are not more exact: the tests of training compare gradients with float64.
    """
    logits, gradients = _outcome(ways[PACKED], batch)
    for way, contestant in ways.items():
        its_logits, its_gradients = _outcome(contestant, batch)
        refuse_differences(f"{way}: logits", [its_logits], [logits], 1e-5)
        for gradient, right in zip(its_gradients, gradients, strict=True):
            error = (gradient - right).norm() / right.norm()
            refuse_differences(f"{way}: a gradient, by its norm", [error], [torch.zeros_like(error)], 1e-3)


def _outcome(way: Contestant, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
    logits = way.model(batch.ids, batch.lengths, way.packs)
    loss = nn.functional.cross_entropy(logits, batch.target)
    return logits.detach(), torch.autograd.grad(loss, list(way.model.parameters()))
