"""The error for an engine that differs from eager mode, with a table of its buckets."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PackagingError
from .verify import VerificationResult


class ToleranceExceeded(PackagingError):
    """An engine differs from the model in eager mode by more than the tolerance."""

    def __init__(self, backend: str, results: Sequence[VerificationResult], tolerance: tuple[float, float]) -> None:
        self.backend = backend
        failed = [result for result in results if not result.passed]
        lines = "\n".join(_table_row(result) for result in results)
        super().__init__(
            f"{backend} differs from the model in eager mode by more than the tolerance "
            f"(atol {tolerance[0]:g}, rtol {tolerance[1]:g}) in {len(failed)} of {len(results)} buckets:\n"
            f"  bucket      result  max error  error / tolerance  largest in\n{lines}{_explanation(results)}"
        )


def _explanation(results: Sequence[VerificationResult]) -> str:
    """Explanation of the failed buckets, if they differ from the others by the batch size alone."""
    alone = [result for result in results if result.bucket.batch == 1]
    if alone and all(result.passed for result in alone):
        return (
            "\nRequests are right alone, but not in a batch: one request may change the output of another. Compute "
            "each row of the batch by itself in forward(), or serve batch: [1]"
        )
    return ""


def _table_row(result: VerificationResult) -> str:
    bucket = f"{result.bucket.batch} x {result.bucket.length}"
    outcome = "passed" if result.passed else "failed"
    return f"  {bucket:<10}  {outcome}  {result.max_error:9.2e}  {result.worst_ratio:17.3g}  {result.where}"
