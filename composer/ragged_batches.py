"""Ragged batches with garbage in the padding, garbage rows, extreme lengths and permutations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchserve_neuron_lstm.bucketing.execute import Pad
from torchserve_neuron_lstm.bucketing.padding import pad, torch_dtype
from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec

from .model import LONGEST, VOCABULARY

ROWS = 8
GARBAGE = (1e3, -1e3, float("nan"), float("inf"))
SHORT = 4
"""The shorter bucket length."""


@dataclass(frozen=True)
class RaggedBatch:
    """Lengths of the rows of a batch, the program's shape, and the garbage."""

    lengths: tuple[int, ...]
    bucket: Bucket
    garbage: float
    """Value in the padding of a float input, and in its dummy rows."""
    bad_row: int | None
    """Row whose request is all NaN; its answer is not compared."""

    def __str__(self) -> str:
        bad = "" if self.bad_row is None else f", row {self.bad_row} all NaN"
        shape = f"{self.bucket.batch} x {self.bucket.length}"
        return f"lengths {list(self.lengths)} in {shape}, {self.garbage} in padding{bad}"


def ragged_batches(count: int, seed: int, *, any_length: bool) -> Iterator[RaggedBatch]:
    """Draw batches: first the extremes. The last one of each five is the one before, permuted."""
    choose = random.Random(seed)
    extremes = [(1,) * ROWS, (LONGEST,) * ROWS, (1,), (LONGEST,)]
    last = extremes[0]
    for index in range(count):
        if index < len(extremes):
            lengths = extremes[index]
        elif index % 5 == 4:
            lengths = tuple(choose.sample(last, len(last)))
        else:
            lengths = _some_lengths(choose)
        yield _batch(lengths, choose, any_length=any_length)
        last = lengths


def bucket_batches(count: int, seed: int) -> Iterator[RaggedBatch]:
    """Draw batches of one bucket length each, for a model that takes no others."""
    choose = random.Random(seed)
    for index in range(count):
        length = (SHORT, LONGEST)[index % 2]
        lengths = (length,) * choose.randint(1, ROWS)
        yield replace(_batch(lengths, choose, any_length=False), bucket=Bucket(ROWS, length))


def _some_lengths(choose: random.Random) -> tuple[int, ...]:
    longest = SHORT if choose.random() < 0.2 else LONGEST
    lengths = [1, longest, *(choose.randint(1, longest) for _ in range(choose.randint(0, ROWS - 2)))]
    choose.shuffle(lengths)
    return tuple(lengths)


def _batch(lengths: tuple[int, ...], choose: random.Random, *, any_length: bool) -> RaggedBatch:
    longest = max(lengths)
    padded = SHORT if longest <= SHORT else LONGEST
    if any_length:
        padded = choose.choice((padded, LONGEST, longest, longest + 3))
    bad = choose.randrange(len(lengths)) if len(lengths) > 1 and choose.random() < 0.5 else None
    return RaggedBatch(lengths, Bucket(choose.choice((len(lengths), ROWS)), padded), choose.choice(GARBAGE), bad)


def pad_with(garbage: float, seed: int) -> Pad:
    """Return `padding.pad` with garbage in the padding and in dummy rows: a float, or any valid id."""

    def padded(items: Sequence[Tensor], spec: TensorSpec, bucket: Bucket) -> Tensor:
        real = pad([torch.ones_like(item, dtype=torch.bool) for item in items], replace(spec, dtype="bool"), bucket)
        rng = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, VOCABULARY, real.shape, generator=rng)
        filler = torch.full(real.shape, garbage) if spec.dtype.startswith("float") else ids
        return torch.where(real, pad(items, spec, bucket), filler.to(torch_dtype(spec)))

    return padded
