"""Batches of sequences: one plan for all of them and, where that fails, one plan for each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from traceback import format_tb
from typing import NamedTuple, TypeVar

from ..bucketing.execute_chunks import ResumedState
from ..bucketing.plan import Plan
from .admission import Pace, out_of_time
from .formats.request import Outputs, SequenceInput
from .responses import RequestError, forget_causes, internal
from .runtime.loader import ServedModel

_log = logging.getLogger(__name__)
InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")
UNEXPECTED_ERROR = "the server failed on this request; the cause is in its log"


class BatchStats(NamedTuple):
    """Lengths, plans and seconds of a batch of sequences."""

    lengths: tuple[int, ...] = ()
    """Timesteps of each sequence, failed ones included."""
    real_timesteps: int = 0
    """Timesteps of the sequences that did not fail."""
    plans: tuple[Plan, ...] = ()
    """Plans that ran to their end: one, unless a sequence failed."""
    plan_seconds: float = 0.0
    engine_seconds: float = 0.0
    """Seconds of padding, programs and unpadding."""


BatchFunction = Callable[[Sequence[InputT]], tuple[list[ResultT], BatchStats]]
"""A function that runs some inputs by one plan, or raises."""


def attempt(step: Callable[..., ResultT], *arguments: object) -> ResultT | RequestError:
    """Return a step's result or refusal. An unexpected error is logged, without its text."""
    try:
        return step(*arguments)
    except RequestError as error:
        forget_causes(error)
        return error
    except Exception as error:  # noqa: BLE001 - no error may reach the other requests of the batch
        _log.error("a request failed unexpectedly\n%s", _described(error))
        return internal(UNEXPECTED_ERROR)


def infer(
    model: ServedModel,
    sequences: Sequence[SequenceInput],
    clock: Callable[[], float],
    resumed: ResumedState | None = None,
) -> tuple[list[Outputs], Outputs, BatchStats]:
    """Plan and run sequences, and time both. Returns the outputs and the carry as `ServedModel.run_plan` does."""
    lengths = tuple([sequence.length for sequence in sequences])
    started = clock()
    plan = model.plan(lengths)
    planned = clock()
    outputs, carry = model.run_plan(plan, [sequence.tensors for sequence in sequences], lengths, resumed=resumed)
    return outputs, carry, BatchStats(lengths, sum(lengths), (plan,), planned - started, clock() - planned)


def run_sequences(
    model: ServedModel, sequences: Sequence[SequenceInput], clock: Callable[[], float], pace: Pace | None = None
) -> tuple[list[Outputs | RequestError], BatchStats]:
    """Return the outputs of each sequence, or the reason for their absence; `clock` returns seconds."""

    def run(batch: Sequence[SequenceInput]) -> tuple[list[Outputs], BatchStats]:
        outputs, _, stats = infer(model, batch, clock)
        return outputs, stats

    return run_with_isolation(sequences, [sequence.length for sequence in sequences], run, pace)


def run_with_isolation(
    inputs: Sequence[InputT], lengths: Sequence[int], run: BatchFunction[InputT, ResultT], pace: Pace | None = None
) -> tuple[list[ResultT | RequestError], BatchStats]:
    """Run a batch and, if that fails, each of its inputs alone; returns a result or an error for each.

    The program calls of a plan belong together: if one fails, its cause may be any sequence. Alone, the sequences that
    caused the failure fail again, and the others do not. This takes longer, and ends where `pace` allows no other one.
    """
    if not inputs:
        return [], BatchStats()
    try:
        results, stats = run(inputs)
    except Exception as error:  # noqa: BLE001 - an engine may raise anything
        logged = {_described(error)}
        _log.error("%d sequences planned together failed\n%s", len(inputs), *logged)
    else:
        return [*results], stats
    if len(inputs) == 1:
        return [internal(UNEXPECTED_ERROR)], BatchStats(tuple(lengths))
    separate: list[tuple[ResultT | RequestError, BatchStats]] = []
    for one, length in zip(inputs, lengths):
        if pace is None or pace.allows_another():
            alone = _run_alone(one, length, run, logged)
            separate.append(alone)
        else:
            separate.append((out_of_time(), BatchStats((length,))))
    return [result for result, _ in separate], merge_stats([stats for _, stats in separate])


def _run_alone(
    one: InputT, length: int, run: BatchFunction[InputT, ResultT], logged: set[str]
) -> tuple[ResultT | RequestError, BatchStats]:
    """Run one input. A cause that is not in `logged` is logged and added."""
    try:
        (result,), stats = run([one])
    except Exception as error:  # noqa: BLE001 - an engine may raise anything
        if (described := _described(error)) not in logged:
            logged.add(described)
            _log.error("a sequence of %d timesteps failed alone\n%s", length, described)
        return internal(UNEXPECTED_ERROR), BatchStats((length,))
    return result, stats


def _described(error: BaseException, causes: int = 8) -> str:
    """Return the kinds and the lines of an error and its causes. Their texts may hold values of the request."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = f"{_described(cause, causes - 1)}\n\nled to\n" if cause is not None and causes else ""
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    return "".join((before, *format_tb(below), type(error).__name__))


def merge_stats(parts: Sequence[BatchStats]) -> BatchStats:
    """Add up the statistics of several batches."""
    return BatchStats(
        lengths=tuple(length for part in parts for length in part.lengths),
        real_timesteps=sum(part.real_timesteps for part in parts),
        plans=tuple(plan for part in parts for plan in part.plans),
        plan_seconds=sum(part.plan_seconds for part in parts),
        engine_seconds=sum(part.engine_seconds for part in parts),
    )
