"""The check of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum

import torch

from .script import Chunk

TOLERANCE = 1e-5
ID, START, END, STEP = (f"ts_request_sequence_{word}" for word in ("id", "start", "end", "step"))


class Verdict(Enum):
    """The verdict on an answer."""

    RIGHT = "right"
    WRONG = "wrong"
    TWICE = "twice"
    """The chunk was applied more than once."""


def judge(
    body: bytes,
    headers: Mapping[str, str],
    session: str,
    chunk: Chunk,
    expected: Mapping[str, torch.Tensor],
    doubled: Callable[[], Mapping[str, torch.Tensor]],
) -> Verdict:
    """Judge the answer to `chunk` of `session`; `doubled` is the answer if it was applied before.

    `headers` by their names in lower case.
    """
    try:
        answer = json.loads(body)
        told = {(answer[ID], answer[STEP]), (headers[ID], int(headers[STEP]))}
        values = {name: torch.tensor(answer[name]) for name in expected}
    except (ValueError, KeyError, TypeError):
        return Verdict.WRONG
    if told == {(session, chunk.end)} and equal(values, expected):
        return Verdict.RIGHT
    steps = max(step for _, step in told)
    return Verdict.TWICE if steps > chunk.end or equal(values, doubled()) else Verdict.WRONG


def equal(values: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    """Whether every expected output is there, in its shape and within the tolerance."""
    return all(
        values[name].shape == one.shape and torch.allclose(values[name], one, rtol=TOLERANCE, atol=TOLERANCE)
        for name, one in expected.items()
    )
