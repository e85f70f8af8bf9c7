"""Requests that programs are verified with, the batches of them that run in a bucket, and the difference of outputs.

The requests have the lengths at which programs fail, and the batches have poisoned padding and poisoned dummy rows.
Everything is drawn from fixed seeds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from typing import Literal, TypeAlias

import torch

from ...backends.differences import allowed_rounding, difference
from ...bucketing.execute import Pad
from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import Bucket, BucketGrid, TensorSpec
from ...config.manifest import Manifest
from ...lowering.exporter.random_values import HUGE, VALUE_KINDS, random_tensor, random_values_of
from ...lowering.program import LoweredModel
from ..errors import PackagingError
from ..progress import ProgressCallback
from .reference import Reference, ReferenceOutputs, ReferenceRequest, select_row

_LARGE = 1e4
_UNKNOWN_VOCABULARY = 8
"""Vocabulary size that is assumed for an input without one."""
_MAX_CHUNKS = 3
"""Chunks of one sequence: the second one receives a carry and hands on another."""
_ROUNDING = (1e-5, 1e-4)

PaddingFill = Literal["pad_value", "large", "random"]

ProgramInfo: TypeAlias = LoweredModel | Manifest
"""Facts of the programs, from the model that is packaged or from an archive."""


class NotRepeatable(PackagingError):
    """A model whose output follows from earlier calls, or from random numbers."""


@dataclass(frozen=True)
class VerificationCase:
    """A request and its reference outputs."""

    request: ReferenceRequest
    expected: ReferenceOutputs
    kind: str | None = None
    """Values of the request, one of `VALUE_KINDS`; None: of a normal distribution, or of the declared range."""
    rounding: tuple[float, ...] = ()
    """Allowed difference of each output, beside the tolerance."""


Cases = Sequence[VerificationCase]
Tolerance = tuple[float, float]
"""The allowed differences of a program from eager mode: (atol, rtol)."""


@dataclass(frozen=True)
class CaseBatch:
    """Requests of one call, possibly fewer than its bucket's rows, and the fill of all other elements."""

    cases: tuple[VerificationCase, ...]
    padding: PaddingFill

    @property
    def lengths(self) -> list[int]:
        """Timesteps of each request."""
        return [case.request.length for case in self.cases]


def draw_cases(
    program: ProgramInfo, grid: BucketGrid, reference: Reference, report: ProgressCallback, longest: int = 1
) -> tuple[VerificationCase, ...]:
    """Draw requests of relevant lengths for every bucket, with the eager model's outputs for each alone.

    Raises `PackagingError`: the eager model fails on a request, or all its outputs are NaN or infinite.
    """
    rng = torch.Generator().manual_seed(0)
    lengths = lengths_to_try(grid.lengths, program.shortest)
    lengths += [longest] * (longest > grid.lengths[-1])
    cases: list[VerificationCase] = []
    for count, length in enumerate(lengths, 1):
        request = ReferenceRequest(length, draw_inputs(program.inputs, length, rng))
        cases.append(VerificationCase(request, reference(request)))
        report(count, len(lengths), f"{length} timesteps")
    if not any(bool(torch.isfinite(tensor).any()) for case in cases for tensor in case.expected):
        raise PackagingError(
            "all outputs of the model in eager mode are NaN or infinite: there is nothing to verify against. "
            "Check the weights in --serialized-file"
        )
    _require_repeatable(cases[:3], reference)
    served = [length for length in reversed(grid.lengths) if length >= program.shortest]
    odd = zip((kind for kind in VALUE_KINDS if kind != HUGE), cycle(served))
    drawn = (_odd_case(kind, length, program.inputs, rng, reference) for kind, length in odd)
    return (*cases, *(case for case in drawn if case is not None))


def _odd_case(
    kind: str, length: int, specs: Sequence[TensorSpec], rng: torch.Generator, reference: Reference
) -> VerificationCase | None:
    """Draw a request of one kind of values; None if eager mode does not take it.

    Of large values, rounding errors are large too: an output may differ by as much as `allowed_rounding` says.
    """
    inputs = [random_values_of(kind, spec, spec.item_sizes(length), rng, _UNKNOWN_VOCABULARY) for spec in specs]
    try:
        expected = reference(ReferenceRequest(length, tuple(inputs)))
    except PackagingError:
        return None
    try:
        rounding = allowed_rounding(lambda x: reference(ReferenceRequest(length, tuple(x))), inputs, expected)
    except PackagingError:  # such as of ids that are computed from values
        rounding = [0.0] * len(expected)
    return VerificationCase(ReferenceRequest(length, tuple(inputs)), expected, kind, tuple(rounding))


def draw_inputs(specs: Sequence[TensorSpec], length: int, rng: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Draw the inputs of one request of this length."""
    return tuple(_draw(spec, spec.item_sizes(length), rng) for spec in specs)


def _require_repeatable(cases: Cases, reference: Reference) -> None:
    """Refuse a model whose output follows from earlier calls, by answering again: every request is independent."""
    for case in cases:
        again = reference(case.request)
        if any(difference(a, b, _ROUNDING)[1] > 1 for a, b in zip(again, case.expected, strict=True)):
            raise NotRepeatable(
                f"the model returns different outputs when it is called again with the same request "
                f"({case.request.length} timesteps): it keeps state between calls, as in `self.hidden = ...` in "
                "forward(), or draws random numbers. Compute the initial state in forward(), or take it as an input"
            )


def lengths_to_try(lengths: Sequence[int], shortest: int = 1) -> list[int]:
    """List lengths of requests: at, beside and between the bucket lengths, or exactly these.

    None is below `shortest`.

    >>> sorted(set(lengths_to_try((2, 4))))
    [1, 2, 3, 4]
    """
    rng = random.Random(0)  # noqa: S311 - not a secret
    chosen = [shortest]
    for below, longest in pairwise((shortest - 1, *(length for length in lengths if length >= shortest))):
        chosen += [below + 1, longest, max(shortest, longest - 1), *(rng.randint(below + 1, longest) for _ in range(3))]
    return chosen


def cases_for_bucket(bucket: Bucket, cases: Cases, program: ProgramInfo) -> list[VerificationCase]:
    """Select the cases that a bucket can run.

    These are all that fit it. A bucket of chunks also runs cases that need several of them.
    """
    longest = bucket.length * (1 if program.kind == "sequence" else _MAX_CHUNKS)
    return [case for case in cases if case.request.length <= longest]


def compose_batches(bucket: Bucket, fitting: Cases) -> tuple[CaseBatch, ...]:
    """Compose batches for one bucket of requests that fit it, always with the longest and the shortest.

    One batch has all rows at the bucket's length, three are ragged in random order with each kind of fill, and one has
    dummy rows.
    """
    rng = random.Random(f"0 {bucket}")  # noqa: S311 - not a secret
    full_length = [case for case in fitting if case.request.length == bucket.length]
    *_, longest = sorted(fitting, key=lambda case: case.request.length)  # longer than the bucket, if it runs chunks
    shortest = min(fitting, key=lambda case: case.request.length)
    if bucket.batch == 1:
        chosen = [longest, full_length[0], shortest, *rng.sample(fitting, min(5, len(fitting)))]
        return tuple(CaseBatch((case,), fill_kind(index)) for index, case in enumerate(chosen))
    full = CaseBatch(tuple(rng.choices(full_length, k=bucket.batch)), "pad_value")
    ragged = [[longest, shortest, *rng.choices(fitting, k=bucket.batch - 2)] for _ in range(3)]
    partial = rng.choices(fitting, k=rng.randint(1, bucket.batch - 1))
    batches = (CaseBatch(tuple(rng.sample(rows, len(rows))), fill_kind(index)) for index, rows in enumerate(ragged))
    return (full, *batches, CaseBatch(tuple(partial), "random"))


def fill_kind(index: int) -> PaddingFill:
    """Return the fill of the batch of this index: each kind in turn."""
    kinds: tuple[PaddingFill, ...] = ("random", "large", "pad_value")
    return kinds[index % len(kinds)]


def poisoned_padding(padding: PaddingFill, rng: torch.Generator) -> Pad:
    """Make a `padding.pad` with other values in dummy rows and after the end of each request."""

    def pad(items: Sequence[torch.Tensor], spec: TensorSpec, bucket: Bucket) -> torch.Tensor:
        padded = _fill(spec, spec.sizes(*bucket), padding, rng)
        for row, item in enumerate(items):
            times = [dim for dim, size in enumerate(spec.item_shape) if size == "time"]
            select_row(padded, spec, item.shape[times[0]] if times else 1, row).copy_(item)
        return padded

    return pad


def _fill(spec: TensorSpec, sizes: tuple[int, ...], padding: PaddingFill, rng: torch.Generator) -> torch.Tensor:
    dtype = torch_dtype(spec)
    if padding == "pad_value" or not dtype.is_floating_point:  # serving writes nothing else for integers
        return torch.full(sizes, spec.pad_value).to(dtype)
    if padding == "large" and spec.value_range is None:
        return torch.full(sizes, _LARGE).to(dtype)
    return _draw(replace(spec, nan=False), sizes, rng)


def _draw(spec: TensorSpec, sizes: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    return random_tensor(spec, sizes, rng, unknown_ids=_UNKNOWN_VOCABULARY)
