"""A check that both commits do the same work: errors are answered fast, and their time means nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

from .process import Kind

TOLERANCE = 1e-4
_BYTES = 0.1  # of a batch's answers, whose numbers are random


class OtherWork(RuntimeError):
    """The sides answer the same requests differently; the message says where."""


def refuse_other_work(kind: Kind, base: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Compare the descriptions that two children give of themselves.

    Raises:
        OtherWork: an answer of the archives differs, or the hot paths' answers are not of the same size.
    """
    if kind == "archive":
        for index, (before, changed) in enumerate(zip(base["answers"], head["answers"], strict=True)):
            if not same_answer(json.loads(before), json.loads(changed)):
                raise OtherWork(f"request {index} is answered {before} by the base and {changed} by the head")
        return
    sizes, changed_sizes = base["answer_bytes"], head["answer_bytes"]
    for name in sizes:
        if name in changed_sizes and not isclose(sizes[name], changed_sizes[name], rel_tol=_BYTES):
            raise OtherWork(f"{name}: {sizes[name]} bytes of answers by the base, {changed_sizes[name]} by the head")


def same_answer(ours: object, theirs: object) -> bool:
    """Whether two JSON values are equal, numbers within the tolerance.

    >>> same_answer({"scores": [1.0]}, {"scores": [1.00001]}), same_answer([1.0], [1.1]), same_answer([1], {"0": 1})
    (True, False, False)
    """
    left, right = list(_leaves(ours)), list(_leaves(theirs))
    return len(left) == len(right) and all(
        path == other and (value == changed or _close(value, changed))
        for (path, value), (other, changed) in zip(left, right, strict=True)
    )


def _close(value: object, changed: object) -> bool:
    numbers = (int, float)
    return (
        isinstance(value, numbers)
        and isinstance(changed, numbers)
        and isclose(value, changed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    )


def _leaves(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], object]]:
    """Every value that contains no other value, with its path."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key], (*path, str(key)))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _leaves(one, (*path, index))
    else:
        yield path, value
