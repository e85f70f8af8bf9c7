"""Verification of loaded programs: in each bucket, in planned shapes, and with sessions."""

from __future__ import annotations

from collections.abc import Sequence

from ...bucketing.shapes import Bucket
from ...handlers.runtime.loader import LoadedArchive
from ..progress import ProgressCallback
from .tolerance_exceeded import ToleranceExceeded
from .verification_cases import VerificationCase
from .verify import VerificationResult, merge_worst, verify_bucket, verify_planned
from .verify_streaming import verify_streaming


def verify_programs(
    loaded: LoadedArchive, cases: Sequence[VerificationCase], report: ProgressCallback
) -> dict[Bucket, VerificationResult]:
    """Verify loaded programs against eager mode in each bucket of the grid.

    Batches in planned shapes, and sessions, count for the largest bucket.

    Raises:
        ToleranceExceeded: an output differs from eager mode by more than the tolerance.
    """
    manifest = loaded.manifest
    buckets, tolerance = manifest.grid.buckets, manifest.tolerance
    results: dict[Bucket, VerificationResult] = {}
    for done, bucket in enumerate(buckets, 1):
        results[bucket] = verify_bucket(loaded, bucket, manifest, cases, tolerance)
        report(done, len(buckets), f"{manifest.backend} {bucket.batch} x {bucket.length}")
    largest, rows = buckets[-1], buckets[-1].batch
    results[largest] = merge_worst(results[largest], verify_planned(loaded, manifest, cases, rows, tolerance))
    if manifest.streaming is not None:
        results[largest] = merge_worst(results[largest], verify_streaming(loaded, manifest, cases, rows, tolerance))
    if not all(result.passed for result in results.values()):
        raise ToleranceExceeded(manifest.backend, list(results.values()), tolerance)
    return results
