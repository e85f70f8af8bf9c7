"""Verification of loaded programs: in each bucket, in planned shapes, and with sessions.

For sessions, requests are cut into random chunks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from ...backends.differences import difference
from ...bucketing.execute_chunks import ResumedState
from ...bucketing.shapes import Bucket, TensorSpec
from ...handlers.runtime.loader import LoadedArchive, ServedModel
from ..progress import ProgressCallback
from .verification_cases import Cases, ProgramInfo, Tolerance, VerificationCase
from .verify import ToleranceExceeded, VerificationResult, merge_worst, verify_bucket, verify_planned


def verify_programs(loaded: LoadedArchive, cases: Cases, report: ProgressCallback) -> dict[Bucket, VerificationResult]:
    """Verify loaded programs against eager mode in each bucket of the grid.

    Batches in planned shapes, and sessions, count for the largest bucket.

    Raises `ToleranceExceeded`: an output differs from eager mode by more than the tolerance.
    """
    manifest = loaded.manifest
    buckets, tolerance = manifest.grid.buckets, manifest.tolerance
    plain = [case for case in cases if case.kind is None]
    results: dict[Bucket, VerificationResult] = {}
    for done, bucket in enumerate(buckets, 1):
        results[bucket] = verify_bucket(loaded, bucket, manifest, plain, tolerance)
        report(done, len(buckets), f"{manifest.backend} {bucket.batch} x {bucket.length}")
    largest, rows = buckets[-1], buckets[-1].batch
    planned = cases if manifest.precision == "float32" else plain  # the tolerance of others is for values near 1
    results[largest] = merge_worst(results[largest], verify_planned(loaded, manifest, planned, rows, tolerance))
    if manifest.streaming is not None:
        results[largest] = merge_worst(results[largest], verify_streaming(loaded, manifest, plain, rows, tolerance))
    if not all(result.passed for result in results.values()):
        raise ToleranceExceeded(manifest.backend, list(results.values()), tolerance)
    return results


def kinds_beyond_tolerance(loaded: ServedModel, cases: Cases) -> tuple[str, ...]:
    """Return the kinds of values for which an engine of a lower precision exceeds its tolerance; none in float32."""
    manifest = loaded.manifest
    if manifest.precision == "float32":
        return ()
    rows, tolerance = manifest.grid.batches[-1], manifest.tolerance
    odd = [(case.kind, case) for case in cases if case.kind is not None]
    return tuple(kind for kind, case in odd if not verify_planned(loaded, manifest, [case], rows, tolerance).passed)


_BATCHES = 4
_MAX_ROWS = 8
_MAX_CHUNKS = 6


@dataclass
class _Session:
    case: VerificationCase
    cuts: list[int]
    """First timestep of each chunk, and the length."""
    state: tuple[torch.Tensor, ...] | None = None
    done: int = 0
    """Number of chunks."""
    answers: list[tuple[torch.Tensor, ...]] = field(default_factory=list)


def verify_streaming(
    model: ServedModel, program: ProgramInfo, cases: Cases, rows: int, tolerance: Tolerance, seed: int = 0
) -> VerificationResult:
    """Cut requests at random, and run their chunks in batches in which other sessions start and end."""
    choose = random.Random(seed)  # noqa: S311 - not a secret
    worst = VerificationResult(Bucket(rows, 1), 0.0, 0.0, "")
    for _ in range(_BATCHES):
        sessions = [_cut(case, choose) for case in choose.choices(cases, k=min(2 * rows, _MAX_ROWS))]
        while waiting := [session for session in sessions if session.done < len(session.cuts) - 1]:
            _advance(model, program.inputs, choose.sample(waiting, k=choose.randint(1, min(rows, len(waiting)))))
        for session in sessions:
            worst = merge_worst(worst, _compare(session, program.outputs, tolerance))
    return worst


def _cut(case: VerificationCase, choose: random.Random) -> _Session:
    length = case.request.length
    inner = choose.sample(range(1, length), k=choose.randint(0, min(length - 1, _MAX_CHUNKS - 1)))
    return _Session(case, [0, *sorted(inner), length])


def _advance(model: ServedModel, inputs: Sequence[TensorSpec], sessions: Sequence[_Session]) -> None:
    spans = [(session.cuts[session.done], session.cuts[session.done + 1]) for session in sessions]
    chunks = [
        [_narrow(tensor, spec, *span) for tensor, spec in zip(session.case.request.inputs, inputs, strict=True)]
        for session, span in zip(sessions, spans, strict=True)
    ]
    lengths = [end - begin for begin, end in spans]
    rows = tuple(row for row, session in enumerate(sessions) if session.state is not None)
    states = [state for session in sessions if (state := session.state) is not None]
    past = ResumedState(rows, tuple(spans[row][0] for row in rows), tuple(map(torch.cat, zip(*states, strict=True))))
    answers, carried = model.run_plan(model.plan(lengths), chunks, lengths, resumed=past)
    for row, session in enumerate(sessions):
        session.answers.append(answers[row])
        session.state = tuple(value[row : row + 1] for value in carried)
        session.done += 1


def _narrow(tensor: torch.Tensor, spec: TensorSpec, begin: int, end: int) -> torch.Tensor:
    for dim in spec.item_time_dims:
        tensor = tensor.narrow(dim, begin, end - begin)
    return tensor.contiguous()


def _compare(session: _Session, outputs: Sequence[TensorSpec], tolerance: Tolerance) -> VerificationResult:
    """Compare with the reference the timesteps of all chunks, and the other outputs of the last one."""
    worst = VerificationResult(Bucket(1, 1), 0.0, 0.0, "")
    for position, spec in enumerate(outputs):
        parts = [answer[position] for answer in session.answers]
        ours = torch.cat(parts, spec.item_time_dims[0]) if spec.item_time_dims else parts[-1]
        error, ratio = difference(ours, session.case.expected[position], tolerance)
        sizes = [end - begin for begin, end in pairwise(session.cuts)]
        where = f"{spec.name} of a session in chunks of {sizes} timesteps"
        worst = merge_worst(worst, VerificationResult(Bucket(1, 1), error, ratio, where))
    return worst
