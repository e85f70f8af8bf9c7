"""Engines that were not compiled for every bucket, with the figures of the decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...bucketing.shapes import Bucket


@dataclass(frozen=True)
class OmittedEngine:
    """An engine that was left out, because it cannot be the fastest, or because time ran out."""

    backend: str
    reason: str
    measured: Mapping[Bucket, float] = field(default_factory=dict)
    """Milliseconds of one full call in the buckets that it was compiled for."""
    expected_ms: float | None = None
    """Milliseconds that one batch of each size takes at least; None if nothing was measured."""
    fastest: str | None = None
    """The engine that it was compared with."""
    fastest_ms: float | None = None
    """Measured milliseconds of that engine for the same batches."""


def out_of_time(backend: str, seconds: float | None) -> OmittedEngine:
    """Describe an engine whose compilation was not begun or not finished within the bound of the YAML."""
    return OmittedEngine(
        backend,
        f"neuron_lstm.backend.auto.time: {seconds:g} s had passed before its programs were compiled for every bucket",
    )


def too_slow(
    backend: str, measured: Mapping[Bucket, float], expected_ms: float, fastest: str, fastest_ms: float, buckets: int
) -> OmittedEngine:
    """Describe an engine that cannot be the fastest, by measurements in a few of its buckets."""
    calls = ", ".join(f"{bucket.batch} x {bucket.length} in {ms:.2f} ms" for bucket, ms in measured.items())
    reason = (
        f"{_verdict(expected_ms, fastest_ms)}: {expected_ms:.2f} ms or more for one batch of each size, and "
        f"{fastest} takes {fastest_ms:.2f} ms. It was compiled for {len(measured)} of {buckets} buckets: {calls}. "
        f"To compile it for all, write backend: {{auto: {{try: [{fastest}, {backend}]}}}}"
    )
    return OmittedEngine(backend, reason, measured, expected_ms, fastest, fastest_ms)


def bounded(
    backend: str, bounds: Mapping[Bucket, float], least_ms: float, fastest: str, fastest_ms: float
) -> OmittedEngine:
    """Describe an engine that cannot be the fastest, by the time of operators that its programs call."""
    calls = ", ".join(f"{bucket.batch} x {bucket.length} in {ms:.2f} ms" for bucket, ms in bounds.items())
    reason = (
        f"{_verdict(least_ms, fastest_ms)}: its recurrences alone take {least_ms:.2f} ms or more for one batch of "
        f"each size, and {fastest} takes {fastest_ms:.2f} ms for the whole model. They are operators of torch that its "
        f"programs call, so they were measured without compiling: {calls}. To compile it for all buckets, write "
        f"backend: {{auto: {{try: [{fastest}, {backend}]}}}}"
    )
    return OmittedEngine(backend, reason, {}, least_ms, fastest, fastest_ms)


def _verdict(least_ms: float, fastest_ms: float) -> str:
    """The verdict about an engine that takes `least_ms` or more.

    >>> _verdict(2.0, 1.0), _verdict(3.0, 4.0)
    ('it cannot be the fastest', 'it saves 25% at most, which could be a disturbed measurement')
    """
    if least_ms >= fastest_ms:
        return "it cannot be the fastest"
    return f"it saves {1 - least_ms / fastest_ms:.0%} at most, which could be a disturbed measurement"


def lost_before(backend: str, expected_ms: float, fastest: str, fastest_ms: float) -> OmittedEngine:
    """Describe an engine that clearly lost a comparison by an earlier packaging of the same programs."""
    reason = (
        f"it was slower when the same programs were packaged before: {expected_ms:.2f} ms for one batch of each size, "
        f"and {fastest} took {fastest_ms:.2f} ms. "
        f"To try it again, write backend: {{auto: {{try: [{fastest}, {backend}]}}}}"
    )
    return OmittedEngine(backend, reason, {}, expected_ms, fastest, fastest_ms)
