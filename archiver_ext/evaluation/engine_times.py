"""Measured times of several engines, loaded at once and called in alternating rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...bucketing.padding import zeros
from ...bucketing.shapes import Bucket
from ...handlers.runtime.measurement import Call
from ..torch_threads import on_threads
from .alternating import measure_alternating
from .candidate import CandidateResult
from .compared_batches import compared_batches
from .evaluate import EvaluatedEngine, LoadedEngine


@dataclass(frozen=True)
class EngineTimes:
    """Measured times of several engines, in the same alternating rounds."""

    totals: Mapping[str, float]
    """Milliseconds for one batch of each size, by the engine."""
    calls: Mapping[Bucket, float]
    """Milliseconds of the further calls."""
    undisturbed: bool
    """False: other work on the machine may have decided."""

    @property
    def fastest(self) -> str:
        """The engine with the least total."""
        return min(self.totals, key=self.totals.__getitem__)


def measure_together(engines: Sequence[EvaluatedEngine], further: Mapping[Bucket, Call] | None = None) -> EngineTimes:
    """Measure one batch of each size, and calls of a further engine, in alternating rounds."""
    calls: dict[tuple[str, int] | Bucket, Call] = {
        (engine.result.backend, len(lengths)): _batch_call(engine.loaded, lengths)
        for engine in engines
        for lengths in compared_batches(engine.loaded.archive.manifest)
    }
    calls.update((bucket, call) for bucket, call in (further or {}).items())
    totals: dict[str, float] = {}
    full: dict[Bucket, float] = {}
    measured = measure_alternating(calls)
    for key, milliseconds in measured.milliseconds.items():
        if isinstance(key, Bucket):
            full[key] = milliseconds
        else:
            totals[key[0]] = totals.get(key[0], 0.0) + milliseconds
    return EngineTimes(totals, full, measured.undisturbed)


def with_total(result: CandidateResult, totals: Mapping[str, float]) -> CandidateResult:
    """Replace the planned total by the measured one, unless the device is emulated."""
    return result if result.simulation is not None else replace(result, total_ms=totals[result.backend])


def _batch_call(loaded: LoadedEngine, lengths: Sequence[int]) -> Call:
    """One batch as it is planned; its measured time differs from the sum of its plan."""
    archive = loaded.archive
    requests = [[zeros(spec, length) for spec in archive.manifest.inputs] for length in lengths]
    call = partial(archive.run_plan, archive.plan(lengths), requests, lengths)
    return on_threads(loaded.torch_threads, call)
