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
from typing import Literal, Protocol

import torch

from ...bucketing.execute import Pad
from ...bucketing.shapes import Bucket, BucketGrid
from ...bucketing.plan import Plan, single_bucket_plan
from ...bucketing.planner import ExecutionMode
from ...bucketing.shapes import TensorSpec
from ...handlers.runtime.loader import ServedModel
from ..errors import PackagingError
from ..progress import ProgressCallback
from .reference import ReferenceOutputs, Reference, ReferenceRequest, select_row

_LARGE = 1e4
_ANY_ID = 8
"""Below this, ids for an input whose vocabulary is not known."""
_MOST_PIECES = 3
"""Of one sequence: two cuts show what is handed on, and what it is handed on from."""

_PLANNED = 6

PaddingFill = Literal["pad_value", "large", "random"]


class ProgramInfo(Protocol):
    """What has to be known of the programs: a `Program` that is packaged says it, or the `Manifest` of an archive."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Of one request."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Of one request."""

    @property
    def padding(self) -> Literal["masked", "exact_lengths"]:
        """Whether requests may be padded to a bucket."""

    @property
    def kind(self) -> ExecutionMode:
        """Whether they run over whole sequences or in pieces of time."""


class Verdict(Enum):
    """What verification found of one variant."""

    AGREES = "agrees"
    MISSES = "misses"

    def is_passing(self) -> bool:
        """Whether the variant may be served."""
        return self is Verdict.AGREES


@dataclass(frozen=True)
class VerificationResult:
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
class VerificationCase:
    """A request and its right answer."""

    request: ReferenceRequest
    expected: ReferenceOutputs


@dataclass(frozen=True)
class CaseBatch:
    """The requests of one run, which may be fewer than its bucket's rows. `padding` is what stands where no data is."""

    cases: tuple[VerificationCase, ...]
    padding: PaddingFill


def draw_cases(
    program: ProgramInfo, grid: BucketGrid, reference: Reference, report: ProgressCallback, seed: int = 0, longest: int = 1
) -> tuple[VerificationCase, ...]:
    """Requests of the lengths that matter in every bucket, with the eager model's answer to each alone.

    Raises:
        PackagingError: the eager model fails on a request, or answers nothing but not-a-number.
    """
    rng = torch.Generator().manual_seed(seed)
    lengths = lengths_to_try(grid.lengths, padded=program.padding == "masked", seed=seed)
    lengths += [longest] * (longest > grid.lengths[-1])
    cases: list[VerificationCase] = []
    for count, length in enumerate(lengths, 1):
        request = ReferenceRequest(length, tuple(random_tensor(spec, item_sizes(spec, length), rng) for spec in program.inputs))
        cases.append(VerificationCase(request, reference(request)))
        report(count, len(lengths), f"{length} timesteps")
    _refuse_senseless(cases)
    return tuple(cases)


def _refuse_senseless(cases: Sequence[VerificationCase]) -> None:
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


def item_sizes(spec: TensorSpec, length: int) -> tuple[int, ...]:
    """The numbers of one request's part: no batch dimension, `length` timesteps."""
    return tuple(length if size == "time" else int(size) for size in spec.item_shape)


def random_tensor(spec: TensorSpec, sizes: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """Random values that the input may have: standard normal, or ids of the vocabulary."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=rng).to(dtype)
    bound = 2 if dtype is torch.bool else spec.vocabulary or _ANY_ID
    return torch.randint(0, bound, sizes, generator=rng).to(dtype)


def cases_for_bucket(bucket: Bucket, cases: Sequence[VerificationCase], program: ProgramInfo) -> list[VerificationCase]:
    """What a bucket can be asked to run.

    All that fits; its own length alone where nothing may be padded; and where it takes a piece of time, also what
    needs several of them.
    """
    if program.padding == "exact_lengths":
        return [case for case in cases if case.request.length == bucket.length]
    longest = bucket.length * (1 if program.kind == "sequence" else _MOST_PIECES)
    return [case for case in cases if case.request.length <= longest]


def compose_batches(bucket: Bucket, fitting: Sequence[VerificationCase], seed: int = 0) -> tuple[CaseBatch, ...]:
    """Batches for one bucket of requests that fit it, the longest and the shortest of them always among the rows.

    All rows of the bucket's length; ragged in random order, thrice, with each kind of rubbish; and one with rows to
    spare.
    """
    rng = random.Random(f"{seed} {bucket}")  # noqa: S311 - nothing here is secret
    filling = [case for case in fitting if case.request.length == bucket.length]
    *_, longest = sorted(fitting, key=lambda case: case.request.length)  # longer than the bucket, if it is a piece
    shortest = min(fitting, key=lambda case: case.request.length)
    if bucket.batch == 1:
        chosen = [longest, filling[0], shortest, *rng.sample(fitting, min(5, len(fitting)))]
        return tuple(CaseBatch((case,), _kind(index)) for index, case in enumerate(chosen))
    full = CaseBatch(tuple(rng.choices(filling, k=bucket.batch)), "pad_value")
    ragged = [_shuffled([longest, shortest, *rng.choices(fitting, k=bucket.batch - 2)], rng) for _ in range(3)]
    spare = rng.choices(fitting, k=rng.randint(1, bucket.batch - 1))
    return (full, *(CaseBatch(tuple(rows), _kind(n)) for n, rows in enumerate(ragged)), CaseBatch(tuple(spare), "random"))


def _shuffled(rows: list[VerificationCase], rng: random.Random) -> list[VerificationCase]:
    return rng.sample(rows, len(rows))


def _kind(index: int) -> PaddingFill:
    kinds: tuple[PaddingFill, ...] = ("random", "large", "pad_value")
    return kinds[index % len(kinds)]


def poisoned_padding(padding: PaddingFill, rng: torch.Generator) -> Pad:
    """`padding.pad`, but with other values where no request is: whole rows and timesteps after a request's end."""

    def pad(items: Sequence[torch.Tensor], spec: TensorSpec, bucket: Bucket) -> torch.Tensor:
        padded = _rubbish(spec, spec.sizes(*bucket), padding, rng)
        for row, item in enumerate(items):
            times = [dim for dim, size in enumerate(spec.item_shape) if size == "time"]
            select_row(padded, spec, item.shape[times[0]] if times else 1, row).copy_(item)
        return padded

    return pad


def _rubbish(spec: TensorSpec, sizes: tuple[int, ...], padding: PaddingFill, rng: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if padding == "pad_value":
        return torch.full(sizes, spec.pad_value).to(dtype)
    if padding == "large" and dtype.is_floating_point:
        return torch.full(sizes, _LARGE).to(dtype)
    return random_tensor(spec, sizes, rng)


def verify_bucket(
    model: ServedModel, bucket: Bucket, program: ProgramInfo, cases: Sequence[VerificationCase], tolerance: tuple[float, float], seed: int = 0
) -> VerificationResult:
    """Run composed batches in one bucket alone, and compare every request's answer with its reference.

    `tolerance` is (atol, rtol).
    """
    rng = torch.Generator().manual_seed(seed)
    worst = VerificationResult(bucket, Verdict.AGREES, 0.0, 0.0, "")
    for batch in compose_batches(bucket, cases_for_bucket(bucket, cases, program), seed):
        plan = single_bucket_plan(bucket, [case.request.length for case in batch.cases], program.kind)
        for found in _try(model, plan, batch, bucket, program.outputs, tolerance, rng):
            worst = merge_worst(worst, found)
    return worst


def verify_planned(
    model: ServedModel, program: ProgramInfo, cases: Sequence[VerificationCase], rows: int, tolerance: tuple[float, float], seed: int = 0
) -> VerificationResult:
    """Run ragged batches of up to `rows` requests as they will be planned, whatever the shapes."""
    rng, choose = torch.Generator().manual_seed(seed), random.Random(seed)  # noqa: S311 - nothing here is secret
    longest = max(case.request.length for case in cases)
    bucket = Bucket(rows, longest)
    worst = VerificationResult(bucket, Verdict.AGREES, 0.0, 0.0, "")
    for trial in range(_PLANNED):
        batch = CaseBatch(tuple(choose.choices(cases, k=choose.randint(1, rows))), _kind(trial))
        plan = model.plan([case.request.length for case in batch.cases])
        for found in _try(model, plan, batch, bucket, program.outputs, tolerance, rng):
            worst = merge_worst(worst, found)
    return worst


def merge_worst(one: VerificationResult, other: VerificationResult) -> VerificationResult:
    """The worse of both in every respect, under the first one's bucket."""
    ratio_of = one if one.worst_ratio >= other.worst_ratio else other
    verdict = Verdict.AGREES if ratio_of.worst_ratio <= 1 else Verdict.MISSES
    return VerificationResult(one.bucket, verdict, max(one.max_error, other.max_error), ratio_of.worst_ratio, ratio_of.where)


def _try(
    model: ServedModel,
    plan: Plan,
    batch: CaseBatch,
    bucket: Bucket,
    specs: Sequence[TensorSpec],
    tolerance: tuple[float, float],
    rng: torch.Generator,
) -> Iterator[VerificationResult]:
    """Every output of every request of one batch."""
    lengths = [case.request.length for case in batch.cases]
    requests = [case.request.inputs for case in batch.cases]
    answers, _ = model.run_plan(plan, requests, lengths, poisoned_padding(batch.padding, rng))
    for row, (case, answer) in enumerate(zip(batch.cases, answers, strict=True)):
        for ours, spec, expected in zip(answer, specs, case.expected, strict=True):
            error, ratio = difference(ours, expected, tolerance)
            where = f"{spec.name} of a request of {case.request.length} timesteps, row {row} of {bucket.batch}"
            yield VerificationResult(bucket, Verdict.AGREES if ratio <= 1 else Verdict.MISSES, error, ratio, where)


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
