"""Holding every variant against the user's own model.

The reference of each request is the model in eager mode, given that request alone and unpadded. The same requests are
then run in ragged batches of every bucket that holds them, with rubbish in the padding and in the rows that belong to
nobody. Each element must satisfy |ours - eager| <= atol + rtol x |eager|. Everything is drawn from fixed seeds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Literal

import torch

from ...backends.interface import Run
from ...bucketing.grid import Bucket, BucketGrid
from ...bucketing.spec import TensorSpec
from ..errors import PackagingError
from ..lowering.program import Program
from ..progress import Report
from .reference import Answer, Reference, Request, alone

_LARGE = 1e4
_ANY_ID = 8
"""Below this, ids for an input whose vocabulary is not known."""

Padding = Literal["pad_value", "large", "random"]


class Verdict(Enum):
    """What verification found of one variant."""

    AGREES = "agrees"
    MISSES = "misses"

    def is_passing(self) -> bool:
        """Whether the variant may be served."""
        return self is Verdict.AGREES


@dataclass(frozen=True)
class Checked:
    """One variant against eager, over all batches it was given."""

    bucket: Bucket
    verdict: Verdict
    max_error: float
    """The largest |ours - eager|; infinite where one is finite and the other is not, or the shapes differ."""
    worst_ratio: float
    """The largest |ours - eager| / (atol + rtol x |eager|): at most 1 passes."""
    where: str
    """The answer in which the worst ratio was seen."""


@dataclass(frozen=True)
class Case:
    """A request and its right answer."""

    request: Request
    expected: Answer


@dataclass(frozen=True)
class Batch:
    """The rows of one run; None is a row that belongs to no request. `padding` is what stands where no data is."""

    rows: tuple[Case | None, ...]
    padding: Padding


def draw_cases(
    program: Program, grid: BucketGrid, reference: Reference, report: Report, seed: int = 0
) -> tuple[Case, ...]:
    """Requests of the lengths that matter in every bucket, with the eager model's answer to each alone.

    Raises:
        PackagingError: the eager model fails on a request, or answers nothing but not-a-number.
    """
    rng = torch.Generator().manual_seed(seed)
    lengths = lengths_to_try(grid.lengths, padded=program.padding == "masked", seed=seed)
    cases: list[Case] = []
    for count, length in enumerate(lengths, 1):
        request = Request(length, tuple(draw(spec, spec_sizes(spec, length), rng) for spec in program.inputs))
        cases.append(Case(request, reference(request)))
        report(count, len(lengths), f"{length} timesteps")
    _refuse_senseless(cases)
    return tuple(cases)


def _refuse_senseless(cases: Sequence[Case]) -> None:
    tensors = [tensor for case in cases for tensor in case.expected]
    if not any(bool(torch.isfinite(tensor).any()) for tensor in tensors):
        raise PackagingError(
            "the model in eager mode answers nothing but NaN or infinity: there is nothing to verify against. "
            "Check the weights in --serialized-file"
        )


def lengths_to_try(lengths: Sequence[int], *, padded: bool, seed: int = 0) -> list[int]:
    """Lengths of requests: around every edge of the grid and between, or exactly the bucket lengths.

    >>> lengths_to_try((2, 4), padded=False)
    [2, 2, 4, 4]
    >>> sorted(set(lengths_to_try((2, 4), padded=True)))
    [1, 2, 3, 4]
    """
    if not padded:
        return [length for length in lengths for _ in range(2)]
    rng = random.Random(seed)  # noqa: S311 - nothing here is secret
    chosen = [1]
    for below, longest in pairwise((0, *lengths)):
        chosen += [below + 1, longest, max(1, longest - 1), *(rng.randint(below + 1, longest) for _ in range(3))]
    return chosen


def spec_sizes(spec: TensorSpec, length: int) -> tuple[int, ...]:
    """The numbers of one request's part: no batch dimension, `length` timesteps."""
    return tuple(length if size == "time" else int(size) for size in spec.item_shape)


def draw(spec: TensorSpec, sizes: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """Random values that the input may have: standard normal, or ids of the vocabulary."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=rng).to(dtype)
    bound = 2 if dtype is torch.bool else spec.vocabulary or _ANY_ID
    return torch.randint(0, bound, sizes, generator=rng).to(dtype)


def served_by(bucket: Bucket, cases: Sequence[Case], program: Program) -> list[Case]:
    """What a bucket can be asked to run: all that fits, or its own length alone where nothing may be padded."""
    if program.padding == "exact_lengths":
        return [case for case in cases if case.request.length == bucket.length]
    return [case for case in cases if case.request.length <= bucket.length]


def compose(bucket: Bucket, fitting: Sequence[Case], seed: int = 0) -> tuple[Batch, ...]:
    """Batches for one bucket of requests that fit it, the longest and the shortest of them always among the rows.

    All rows full length; ragged in random order, thrice, with each kind of rubbish; and one with rows to spare.
    """
    rng = random.Random(f"{seed} {bucket}")  # noqa: S311 - nothing here is secret
    longest = [case for case in fitting if case.request.length == bucket.length]
    shortest = min(fitting, key=lambda case: case.request.length)
    if bucket.batch == 1:
        chosen = [longest[0], shortest, *rng.sample(fitting, min(5, len(fitting)))]
        return tuple(Batch((case,), _kind(index)) for index, case in enumerate(chosen))
    full = Batch(tuple(rng.choices(longest, k=bucket.batch)), "pad_value")
    ragged = [_shuffled([longest[-1], shortest, *rng.choices(fitting, k=bucket.batch - 2)], rng) for _ in range(3)]
    spare = rng.choices(fitting, k=rng.randint(1, bucket.batch - 1))
    partial: list[Case | None] = [*spare, *[None] * (bucket.batch - len(spare))]
    return (full, *(Batch(tuple(rows), _kind(n)) for n, rows in enumerate(ragged)), Batch(tuple(partial), "random"))


def _shuffled(rows: list[Case], rng: random.Random) -> list[Case]:
    return rng.sample(rows, len(rows))


def _kind(index: int) -> Padding:
    kinds: tuple[Padding, ...] = ("random", "large", "pad_value")
    return kinds[index % len(kinds)]


def to_tensors(batch: Batch, bucket: Bucket, program: Program, rng: torch.Generator) -> list[torch.Tensor]:
    """The batch as the flat inputs of a `Run`: rubbish, with each request's data laid over it, and lengths[B]."""
    tensors = [
        _rows_into(_rubbish(spec, spec.sizes(*bucket), batch.padding, rng), spec, batch, position)
        for position, spec in enumerate(program.inputs)
    ]
    lengths = torch.tensor([1 if row is None else row.request.length for row in batch.rows])
    return [*tensors, lengths] if program.takes_lengths else tensors


def _rubbish(spec: TensorSpec, sizes: tuple[int, ...], padding: Padding, rng: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if padding == "pad_value":
        return torch.full(sizes, spec.pad_value).to(dtype)
    if padding == "large" and dtype.is_floating_point:
        return torch.full(sizes, _LARGE).to(dtype)
    return draw(spec, sizes, rng)


def _rows_into(tensor: torch.Tensor, spec: TensorSpec, batch: Batch, position: int) -> torch.Tensor:
    for row, case in enumerate(batch.rows):
        if case is not None:
            alone(tensor, spec, case.request.length, row).copy_(case.request.inputs[position])
    return tensor


def verify(
    run: Run, bucket: Bucket, program: Program, cases: Sequence[Case], tolerance: tuple[float, float], seed: int = 0
) -> Checked:
    """Run one variant on composed batches and compare every request's answer with its reference.

    `tolerance` is (atol, rtol).
    """
    rng = torch.Generator().manual_seed(seed)
    worst = Checked(bucket, Verdict.AGREES, 0.0, 0.0, "")
    for batch in compose(bucket, served_by(bucket, cases, program), seed):
        outputs = run(to_tensors(batch, bucket, program, rng))
        for found in _compare(outputs, batch, bucket, program.outputs, tolerance):
            worst = _worse(worst, found)
    return worst


def _worse(one: Checked, other: Checked) -> Checked:
    ratio_of = one if one.worst_ratio >= other.worst_ratio else other
    verdict = Verdict.AGREES if ratio_of.worst_ratio <= 1 else Verdict.MISSES
    return Checked(one.bucket, verdict, max(one.max_error, other.max_error), ratio_of.worst_ratio, ratio_of.where)


def _compare(
    outputs: Sequence[torch.Tensor],
    batch: Batch,
    bucket: Bucket,
    specs: Sequence[TensorSpec],
    tolerance: tuple[float, float],
) -> Iterator[Checked]:
    for row, case in enumerate(batch.rows):
        if case is None:
            continue
        for output, spec, expected in zip(outputs, specs, case.expected, strict=True):
            ours = alone(output, spec, case.request.length, row)
            error, ratio = difference(ours, expected, tolerance)
            where = f"{spec.name} of a request of {case.request.length} timesteps, row {row} of {bucket.batch}"
            yield Checked(bucket, Verdict.AGREES if ratio <= 1 else Verdict.MISSES, error, ratio, where)


def difference(ours: torch.Tensor, eager: torch.Tensor, tolerance: tuple[float, float]) -> tuple[float, float]:
    """(the largest |ours - eager|, the largest ratio of it to what is allowed).

    Equal elements differ by nothing, infinities and not-a-numbers included; where only one is finite, by infinity.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), (0.1, 0.0))
    (0.5, 5.0)
    >>> difference(torch.tensor([float("-inf")]), torch.tensor([float("-inf")]), (0.0, 0.0))
    (0.0, 0.0)
    """
    if ours.shape != eager.shape:
        return float("inf"), float("inf")
    if eager.numel() == 0:
        return 0.0, 0.0
    a, b = ours.double(), eager.double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=float("inf"), posinf=float("inf"))
    allowed = tolerance[0] + tolerance[1] * b.abs()
    ratio = torch.where(same, 0.0, torch.where(error.isinf(), error, error / allowed))
    return float(error.max()), float(ratio.max())
