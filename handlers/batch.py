"""Sequences to answers: all of a batch together, and where that fails each alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import torch

from ..bucketing.plan import Plan
from ..config.manifest import Manifest
from .formats.json_formats import Answer
from .formats.request import Item
from .responses import RequestError, internal

_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
UNEXPECTED = "the server failed on this request; the cause is in its log"


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
class Work:
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


Together: TypeAlias = Callable[[Sequence[T]], tuple[list[R], Work]]
"""Answers some sequences by one plan, or fails."""


def answer_items(
    model: Model, items: Sequence[Item], clock: Callable[[], float]
) -> tuple[list[Answer | RequestError], Work]:
    """The answer to each sequence, or why there is none; `clock` gives seconds."""

    def together(own: Sequence[Item]) -> tuple[list[Answer], Work]:
        lengths = tuple(item.length for item in own)
        began = clock()
        plan = model.plan(lengths)
        planned = clock()
        answers = model.answer(plan, [item.tensors for item in own], lengths)
        return answers, Work(lengths, sum(lengths), (plan,), planned - began, clock() - planned)

    return together_else_alone(items, [item.length for item in items], together)


def together_else_alone(
    items: Sequence[T], lengths: Sequence[int], together: Together[T, R]
) -> tuple[list[R | RequestError], Work]:
    """What `together` gives for each sequence, or why there is nothing.

    All runs of a plan belong together, and where one fails nothing tells by whose fault. Then each sequence is answered
    alone: the guilty ones fail again, the others do not.
    """
    if not items:
        return [], Work()
    try:
        answers, work = together(items)
    except Exception:  # noqa: BLE001 - an engine may raise anything
        _log.exception("%d sequences planned together failed", len(items))
    else:
        return [*answers], work
    if len(items) == 1:
        return [internal(UNEXPECTED)], Work(tuple(lengths))
    answered: list[R | RequestError] = []
    works: list[Work] = []
    for item, length in zip(items, lengths, strict=True):
        alone = _alone(item, length, together)
        answered.append(alone[0])
        works.append(alone[1])
    return answered, combined(works)


def _alone(item: T, length: int, together: Together[T, R]) -> tuple[R | RequestError, Work]:
    try:
        (answer,), work = together([item])
    except Exception:  # noqa: BLE001 - it failed with its batch before, and that was logged
        return internal(UNEXPECTED), Work((length,))
    return answer, work


def combined(works: Iterable[Work]) -> Work:
    """Several as one."""
    parts = list(works)
    return Work(
        lengths=tuple(length for part in parts for length in part.lengths),
        useful_timesteps=sum(part.useful_timesteps for part in parts),
        plans=tuple(plan for part in parts for plan in part.plans),
        plan_seconds=sum(part.plan_seconds for part in parts),
        engine_seconds=sum(part.engine_seconds for part in parts),
    )
