"""Sequences to answers: all of a batch together, and where that fails each alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..bucketing.plan import Plan
from ..config.manifest import Manifest
from .encode import Answer
from .errors import RequestError, internal
from .request import Item

_log = logging.getLogger(__name__)
UNEXPECTED = "the server failed on this request; the cause is in its log"


class Model(Protocol):
    """What answers sequences: `handlers.variants.Variants`."""

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


def answer_items(
    model: Model, items: Sequence[Item], clock: Callable[[], float]
) -> tuple[list[Answer | RequestError], Work]:
    """The answer to each sequence, or why there is none; `clock` gives seconds.

    All runs of a plan belong together, and where one fails nothing tells by whose fault. Then each sequence is answered
    alone: the guilty ones fail again, the others do not.
    """
    if not items:
        return [], Work()
    try:
        return _together(model, items, clock)
    except Exception:  # noqa: BLE001 - an engine may raise anything
        _log.exception("%d sequences planned together failed", len(items))
    if len(items) == 1:
        return [internal(UNEXPECTED)], Work((items[0].length,))
    parts = [_alone(model, item, clock) for item in items]
    return [answer for answer, _ in parts], _combined(work for _, work in parts)


def _together(
    model: Model, items: Sequence[Item], clock: Callable[[], float]
) -> tuple[list[Answer | RequestError], Work]:
    lengths = tuple(item.length for item in items)
    began = clock()
    plan = model.plan(lengths)
    planned = clock()
    answers = model.answer(plan, [item.tensors for item in items], lengths)
    return [*answers], Work(lengths, sum(lengths), (plan,), planned - began, clock() - planned)


def _alone(model: Model, item: Item, clock: Callable[[], float]) -> tuple[Answer | RequestError, Work]:
    try:
        (answer,), work = _together(model, [item], clock)
    except Exception:  # noqa: BLE001 - it failed with its batch before, and that was logged
        return internal(UNEXPECTED), Work((item.length,))
    return answer, work


def _combined(works: Iterable[Work]) -> Work:
    parts = list(works)
    return Work(
        lengths=tuple(length for part in parts for length in part.lengths),
        useful_timesteps=sum(part.useful_timesteps for part in parts),
        plans=tuple(plan for part in parts for plan in part.plans),
        plan_seconds=sum(part.plan_seconds for part in parts),
        engine_seconds=sum(part.engine_seconds for part in parts),
    )
