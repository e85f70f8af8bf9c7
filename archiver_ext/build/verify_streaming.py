"""Holding a streaming program against the user's own model: each request in pieces, however it is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from ...bucketing.execute_chunks import ResumedState
from ...bucketing.shapes import Bucket
from ...bucketing.shapes import TensorSpec
from ...handlers.runtime.loader import ServedModel
from .verify import VerificationCase, VerificationResult, ProgramInfo, Verdict, difference

_BATCHES = 4
_MOST_ROWS = 8
_MOST_PIECES = 6


@dataclass
class _Stream:
    """One request on its way, piece by piece."""

    case: VerificationCase
    cuts: list[int]
    """Where its pieces begin, and where the last one ends."""
    state: tuple[torch.Tensor, ...] | None = None
    done: int = 0
    """Pieces."""
    answers: list[tuple[torch.Tensor, ...]] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        return self.done < len(self.cuts) - 1


def verify_streaming(
    model: ServedModel, program: ProgramInfo, cases: Sequence[VerificationCase], rows: int, tolerance: tuple[float, float], seed: int = 0
) -> VerificationResult:
    """Cut requests at random, and answer their pieces in batches in which others begin and end."""
    choose = random.Random(seed)  # noqa: S311 - nothing here is secret
    worst = VerificationResult(Bucket(rows, 1), Verdict.AGREES, 0.0, 0.0, "")
    for _ in range(_BATCHES):
        streams = [_cut(case, choose) for case in choose.choices(cases, k=min(2 * rows, _MOST_ROWS))]
        while waiting := [stream for stream in streams if stream.goes_on]:
            _advance(model, program.inputs, choose.sample(waiting, k=choose.randint(1, min(rows, len(waiting)))))
        for stream in streams:
            worst = max(worst, _compared(stream, program.outputs, tolerance), key=lambda found: found.worst_ratio)
    return worst


def _cut(case: VerificationCase, choose: random.Random) -> _Stream:
    length = case.request.length
    inner = choose.sample(range(1, length), k=choose.randint(0, min(length - 1, _MOST_PIECES - 1)))
    return _Stream(case, [0, *sorted(inner), length])


def _advance(model: ServedModel, inputs: Sequence[TensorSpec], streams: Sequence[_Stream]) -> None:
    """One piece of each."""
    spans = [(stream.cuts[stream.done], stream.cuts[stream.done + 1]) for stream in streams]
    pieces = [
        [_stretch(tensor, spec, *span) for tensor, spec in zip(stream.case.request.inputs, inputs, strict=True)]
        for stream, span in zip(streams, spans, strict=True)
    ]
    lengths = [end - begin for begin, end in spans]
    rows = tuple(row for row, stream in enumerate(streams) if stream.state is not None)
    states = [state for stream in streams if (state := stream.state) is not None]
    past = ResumedState(rows, tuple(spans[row][0] for row in rows), tuple(map(torch.cat, zip(*states, strict=True))))
    answers, carried = model.run_plan(model.plan(lengths), pieces, lengths, resumed=past)
    for row, stream in enumerate(streams):
        stream.answers.append(answers[row])
        stream.state = tuple(value[row : row + 1] for value in carried)
        stream.done += 1


def _stretch(tensor: torch.Tensor, spec: TensorSpec, begin: int, end: int) -> torch.Tensor:
    for dim in spec.item_time_dims:
        tensor = tensor.narrow(dim, begin, end - begin)
    return tensor.contiguous()


def _compared(stream: _Stream, outputs: Sequence[TensorSpec], tolerance: tuple[float, float]) -> VerificationResult:
    """The steps of all pieces together, and the other answers of the last, against those of the whole."""
    worst = VerificationResult(Bucket(1, 1), Verdict.AGREES, 0.0, 0.0, "")
    for position, spec in enumerate(outputs):
        parts = [answer[position] for answer in stream.answers]
        ours = torch.cat(parts, spec.item_time_dims[0]) if spec.item_time_dims else parts[-1]
        error, ratio = difference(ours, stream.case.expected[position], tolerance)
        pieces = [end - begin for begin, end in pairwise(stream.cuts)]
        where = f"{spec.name} of a stream in pieces of {pieces} timesteps"
        found = VerificationResult(Bucket(1, 1), Verdict.AGREES if ratio <= 1 else Verdict.MISSES, error, ratio, where)
        worst = max(worst, found, key=lambda one: one.worst_ratio)
    return worst
