"""A user's own choice of buckets: asked for every length that there can be, before any request has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import index

BucketSelector = Callable[[int, tuple[int, ...]], int]
"""(a sequence's timesteps, the grid's lengths) to the index of the length in whose buckets the sequence runs."""

_MOST_NAMED = 5


class BucketSelectorError(ValueError):
    """A choice that cannot be served by: says for which timesteps, and what is wrong with it."""

    def __init__(self, complaints: Sequence[str]) -> None:
        named = "\n".join(f"  {complaint}" for complaint in complaints[:_MOST_NAMED])
        more = len(complaints) - _MOST_NAMED
        rest = f"\n  and {more} more" if more > 0 else ""
        super().__init__(f"it must choose, each time alike, a length that holds the sequence:\n{named}{rest}")


def tabulate_selector(choose: BucketSelector, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """The bucket length for 1, 2, 3, ... timesteps up to the grid's largest, as `choose` has it.

    It is asked twice for each number of timesteps, the second time in the opposite order.

    >>> tabulate_selector(lambda length, lengths: 0 if length <= 2 else 1, (2, 4))
    (2, 2, 4, 4)

    Raises:
        BadKernel: it fails, chooses what is no length's index or too short, or something else when it is asked again.
    """
    asked = range(1, lengths[-1] + 1)
    first = {timesteps: _answer(choose, timesteps, lengths) for timesteps in asked}
    second = {timesteps: _answer(choose, timesteps, lengths) for timesteps in reversed(asked)}
    complaints = [
        f"{timesteps} timesteps: {complaint}"
        for timesteps in asked
        for complaint in _complaints(timesteps, first[timesteps], second[timesteps], lengths)
    ]
    if complaints:
        raise BucketSelectorError(complaints)
    return tuple(lengths[int(first[timesteps])] for timesteps in asked)


def _answer(choose: BucketSelector, timesteps: int, lengths: tuple[int, ...]) -> int | str:
    """The index, or what is wrong with the answer."""
    try:
        answer: object = choose(timesteps, lengths)
    except Exception as error:  # noqa: BLE001 - the user's own function may raise anything
        return f"{type(error).__name__}: {error}"
    try:
        return f"{answer!r} is no index" if isinstance(answer, bool) else index(answer)  # type: ignore[arg-type]
    except TypeError:
        return f"{repr(answer)[:60]} is no index"


def _complaints(timesteps: int, first: int | str, second: int | str, lengths: tuple[int, ...]) -> Iterator[str]:
    if isinstance(first, str):
        yield first
    elif not 0 <= first < len(lengths):
        yield f"{first}, but the lengths have the indices 0 to {len(lengths) - 1}"
    elif lengths[first] < timesteps:
        yield f"{first}, which is the length {lengths[first]}: too short"
    elif first != second:
        yield f"{first}, and when asked again: {second}"
