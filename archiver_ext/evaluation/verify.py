"""Verification of every variant against the user's own model.

The reference of each request is the model in eager mode, given that request alone and unpadded. The same requests are
then run in ragged batches of every bucket that holds them, with poisoned padding and poisoned dummy rows. Each element
must satisfy |ours - eager| <= atol + rtol x |eager|. Everything is drawn from fixed seeds. The error for an engine that
differs by more has a table of its buckets.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch

from ...backends.differences import difference
from ...bucketing.plan import Plan, single_bucket_plan
from ...bucketing.shapes import Bucket, TensorSpec
from ...handlers.runtime.loader import ServedModel
from ..errors import PackagingError
from .verification_cases import (
    CaseBatch,
    Cases,
    ProgramInfo,
    Tolerance,
    cases_for_bucket,
    compose_batches,
    fill_kind,
    poisoned_padding,
)


@dataclass(frozen=True)
class VerificationResult:
    """The largest difference of one variant from eager mode, over all its batches."""

    bucket: Bucket
    max_error: float
    """The largest |ours - eager|; infinite where one is finite and the other is not, or the shapes differ."""
    worst_ratio: float
    """The largest |ours - eager| / (atol + rtol x |eager|): at most 1 passes."""
    where: str
    """The output with the worst ratio."""
    kind: str | None = None
    """The values of that request, as in `VerificationCase`."""

    @property
    def passed(self) -> bool:
        """Whether the variant may be served."""
        return self.worst_ratio <= 1


def verify_bucket(
    model: ServedModel, bucket: Bucket, program: ProgramInfo, cases: Cases, tolerance: Tolerance
) -> VerificationResult:
    """Run composed batches in one bucket alone, and compare every request's outputs with its reference."""
    batches = compose_batches(bucket, cases_for_bucket(bucket, cases, program))
    planned = ((single_bucket_plan(bucket, batch.lengths, program.kind), batch) for batch in batches)
    return _worst_result(model, planned, bucket, program.outputs, tolerance)


def verify_planned(
    model: ServedModel, program: ProgramInfo, cases: Cases, rows: int, tolerance: Tolerance
) -> VerificationResult:
    """Run ragged batches of up to `rows` requests as they will be planned, in any shapes."""
    choose = random.Random(0)  # noqa: S311 - not a secret
    bucket = Bucket(rows, max(case.request.length for case in cases))
    batches = (
        CaseBatch(tuple(choose.choices(cases, k=choose.randint(1, rows))), fill_kind(index)) for index in range(6)
    )
    odd = [case for case in cases if case.kind]
    odd_batches = (CaseBatch(tuple(odd[first : first + rows]), "large") for first in range(0, len(odd), rows))
    planned = ((model.plan(batch.lengths), batch) for batch in chain(batches, odd_batches))
    return _worst_result(model, planned, bucket, program.outputs, tolerance)


def merge_worst(one: VerificationResult, other: VerificationResult) -> VerificationResult:
    """Combine two results into the worse of both in every respect, under the first one's bucket."""
    worst = one if one.worst_ratio >= other.worst_ratio else other
    return replace(worst, bucket=one.bucket, max_error=max(one.max_error, other.max_error))


def _worst_result(
    model: ServedModel,
    planned: Iterable[tuple[Plan, CaseBatch]],
    bucket: Bucket,
    specs: Sequence[TensorSpec],
    tolerance: Tolerance,
) -> VerificationResult:
    rng = torch.Generator().manual_seed(0)
    worst = VerificationResult(bucket, 0.0, 0.0, "")
    for plan, batch in planned:
        requests = [case.request.inputs for case in batch.cases]
        try:
            answers, _ = model.run_plan(plan, requests, batch.lengths, poisoned_padding(batch.padding, rng))
        except IndexError as failed:
            raise FailsOnPadding(
                f"{failed}: a position that the model computes from values is outside of the sequence, in a row that "
                "fills a batch or after a request's end. Compute it from the lengths, or clamp it"
            ) from failed
        for row, (case, answer) in enumerate(zip(batch.cases, answers, strict=True)):
            allowed = case.rounding or (0.0,) * len(specs)
            for ours, spec, expected, rounding in zip(answer, specs, case.expected, allowed, strict=True):
                error, ratio = difference(ours, expected, (tolerance[0] + rounding, tolerance[1]))
                values = "" if case.kind is None else f" with values {case.kind}"
                length, rows = case.request.length, bucket.batch
                where = f"{spec.name} of a request of {length} timesteps{values}, row {row} of {rows}"
                worst = merge_worst(worst, VerificationResult(bucket, error, ratio, where, case.kind))
    return worst


class FailsOnPadding(PackagingError):
    """Programs that fail where a batch has no request."""


class ToleranceExceeded(PackagingError):
    """An engine differs from the model in eager mode by more than the tolerance."""

    def __init__(self, backend: str, results: Sequence[VerificationResult], tolerance: Tolerance) -> None:
        failed = [result for result in results if not result.passed]
        lines = "\n".join(_table_row(result) for result in results)
        super().__init__(
            f"{backend} differs from the model in eager mode by more than the tolerance "
            f"(atol {tolerance[0]:g}, rtol {tolerance[1]:g}) in {len(failed)} of {len(results)} buckets:\n"
            f"  bucket      result  max error  error / tolerance  largest in\n{lines}{_explanation(results)}"
        )


def _explanation(results: Sequence[VerificationResult]) -> str:
    """Explanation of the failed buckets, if requests of ordinary values, which run in all, fail in batches alone."""
    alone = [result for result in results if result.bucket.batch == 1]
    in_batches = any(not result.passed and result.kind is None for result in results)
    if alone and in_batches and all(result.passed for result in alone):
        return (
            "\nRequests are right alone, but not in a batch: one request may change the output of another. Compute "
            "each row of the batch by itself in forward(), or serve batch: [1]"
        )
    return ""


def _table_row(result: VerificationResult) -> str:
    bucket = f"{result.bucket.batch} x {result.bucket.length}"
    outcome = "passed" if result.passed else "failed"
    return f"  {bucket:<10}  {outcome}  {result.max_error:9.2e}  {result.worst_ratio:17.3g}  {result.where}"
