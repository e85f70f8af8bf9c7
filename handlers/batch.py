"""Sequences to answers: all of a batch together, and where that fails each alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import torch

from ..bucketing.plan import Plan
from ..config.manifest import Manifest
from .formats.json_formats import Outputs
from .formats.request import SequenceInput
from .responses import RequestError, internal

_log = logging.getLogger(__name__)
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
UNEXPECTED_ERROR = "the server failed on this request; the cause is in its log"


class Model(Protocol):
    """What answers sequences: `handlers.runtime.loader.Variants`."""

    @property
    def manifest(self) -> Manifest:
        """Of the archive."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest runs for sequences of these lengths."""

    def answer(
        self, plan: Plan, requests: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int]
    ) -> list[tuple[torch.Tensor, ...]]:
        """The answers to sequences, in their order."""


@dataclass(frozen=True)
class BatchStats:
    """What answering some sequences came to."""

    lengths: tuple[int, ...] = ()
    """Timesteps of each, answered or not."""
    useful_timesteps: int = 0
    """Of those that were answered."""
    plans: tuple[Plan, ...] = ()
    """That were followed to their end: one, unless a sequence failed."""
    plan_seconds: float = 0.0
    engine_seconds: float = 0.0
    """Padding, programs, and taking their answers apart."""


BatchFunction: TypeAlias = Callable[[Sequence[ItemT]], tuple[list[ResultT], BatchStats]]
"""Answers some sequences by one plan, or fails."""


def run_sequences(
    model: Model, items: Sequence[SequenceInput], clock: Callable[[], float]
) -> tuple[list[Outputs | RequestError], BatchStats]:
    """The answer to each sequence, or why there is none; `clock` gives seconds."""

    def together(own: Sequence[SequenceInput]) -> tuple[list[Outputs], BatchStats]:
        lengths = tuple(item.length for item in own)
        began = clock()
        plan = model.plan(lengths)
        planned = clock()
        answers = model.answer(plan, [item.tensors for item in own], lengths)
        return answers, BatchStats(lengths, sum(lengths), (plan,), planned - began, clock() - planned)

    return run_with_isolation(items, [item.length for item in items], together)


def run_with_isolation(
    items: Sequence[ItemT], lengths: Sequence[int], together: BatchFunction[ItemT, ResultT]
) -> tuple[list[ResultT | RequestError], BatchStats]:
    """What `together` gives for each sequence, or why there is nothing.

    All runs of a plan belong together, and where one fails nothing tells by whose fault. Then each sequence is answered
    alone: the guilty ones fail again, the others do not.
    """
    if not items:
        return [], BatchStats()
    try:
        answers, work = together(items)
    except Exception:  # noqa: BLE001 - an engine may raise anything
        _log.exception("%d sequences planned together failed", len(items))
    else:
        return [*answers], work
    if len(items) == 1:
        return [internal(UNEXPECTED_ERROR)], BatchStats(tuple(lengths))
    answered: list[ResultT | RequestError] = []
    works: list[BatchStats] = []
    for item, length in zip(items, lengths, strict=True):
        alone = _alone(item, length, together)
        answered.append(alone[0])
        works.append(alone[1])
    return answered, merge_stats(works)


def _alone(
    item: ItemT, length: int, together: BatchFunction[ItemT, ResultT]
) -> tuple[ResultT | RequestError, BatchStats]:
    try:
        (answer,), work = together([item])
    except Exception:  # noqa: BLE001 - it failed with its batch before, and that was logged
        return internal(UNEXPECTED_ERROR), BatchStats((length,))
    return answer, work


def merge_stats(works: Iterable[BatchStats]) -> BatchStats:
    """Several as one."""
    parts = list(works)
    return BatchStats(
        lengths=tuple(length for part in parts for length in part.lengths),
        useful_timesteps=sum(part.useful_timesteps for part in parts),
        plans=tuple(plan for part in parts for plan in part.plans),
        plan_seconds=sum(part.plan_seconds for part in parts),
        engine_seconds=sum(part.engine_seconds for part in parts),
    )
