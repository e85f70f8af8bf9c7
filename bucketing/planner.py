"""Planner protocol; choice of a planner by execution mode and by the shapes that an engine takes.

A bucket selector is the user's own choice of a bucket length, tabulated in advance for every length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Literal, Protocol

from .batch_planner import BucketPlanner, DynamicPlanner
from .bucketed_chunks import BucketedChunkPlanner
from .cost import CostModel
from .dynamic_chunks import DynamicChunkPlanner
from .plan import Plan
from .shapes import BucketGrid, Shapes


class Planner(Protocol):
    """Function from lengths to the cheapest plan. Built once for an archive; planning keeps no state."""

    @property
    def cost(self) -> CostModel:
        """Costs that plans are made by: of measured calls or, where it was measured apart, of padding."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the cheapest plan for requests of these lengths.

        Raises `SequenceTooLong`: a length that is not served.
        Raises `ValueError`: a length below 1.
        """


def make_planner(
    kind: Literal["sequence", "chunk"],
    shapes: Shapes,
    cost: CostModel,
    *,
    longest: int | None = None,
    head_cost: CostModel | None = None,
    table: tuple[int, ...] | None = None,
) -> Planner:
    """Build the planner for programs of this kind on an engine that takes these shapes.

    `longest` is the longest sequence served by `chunk` programs of fixed shapes, which have no limit; None: no limit.
    `head_cost` is the cost of their head over buckets of length 1; None: an estimate. `table` applies to `sequence`
    programs on a grid: the bucket length that the user selects for 1, 2, 3, ... timesteps; None: chosen by cost.
    """
    if kind == "chunk":
        if isinstance(shapes, BucketGrid):
            return BucketedChunkPlanner(shapes, cost, longest, head_cost)
        return DynamicChunkPlanner(shapes, cost)
    if isinstance(shapes, BucketGrid):
        return BucketPlanner(shapes, cost, table)
    return DynamicPlanner(shapes, cost)


BucketSelector = Callable[[int, tuple[int, ...]], int]
"""Function from (timesteps, lengths of the grid) to the index of the bucket length to use."""

_MOST_NAMED = 5


class BucketSelectorError(ValueError):
    """A bucket selector with invalid results: names the timesteps and the reason."""

    def __init__(self, complaints: Sequence[str]) -> None:
        named = "\n".join(f"  {complaint}" for complaint in complaints[:_MOST_NAMED])
        more = len(complaints) - _MOST_NAMED
        rest = f"\n  and {more} more" if more > 0 else ""
        super().__init__(
            f"a bucket selector must always return the index of a length that holds the sequence:\n{named}{rest}"
        )


def tabulate_selector(choose: BucketSelector, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Tabulate the bucket length that `choose` selects for 1, 2, 3, ... timesteps.

    The table ends at the grid's largest length. `choose` is called twice for each number of timesteps, the second time
    in the opposite order.

    >>> tabulate_selector(lambda length, lengths: 0 if length <= 2 else 1, (2, 4))
    (2, 2, 4, 4)

    Raises `BucketSelectorError`: it fails, returns no index of a length that is long enough, or is not deterministic.
    """
    asked = range(1, lengths[-1] + 1)
    first = {timesteps: _call(choose, timesteps, lengths) for timesteps in asked}
    second = {timesteps: _call(choose, timesteps, lengths) for timesteps in reversed(asked)}
    complaints = [
        f"{timesteps} timesteps: {complaint}"
        for timesteps in asked
        for complaint in _complaints(timesteps, first[timesteps], second[timesteps], lengths)
    ]
    if complaints:
        raise BucketSelectorError(complaints)
    return tuple(lengths[int(first[timesteps])] for timesteps in asked)


def _call(choose: BucketSelector, timesteps: int, lengths: tuple[int, ...]) -> int | str:
    """Return the index, or the reason why the return value is invalid."""
    try:
        value: object = choose(timesteps, lengths)
    except Exception as error:  # noqa: BLE001 - the user's own function may raise anything
        return f"{type(error).__name__}: {error}"
    try:
        return f"{value!r} is no index" if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # anything else raises TypeError
    except TypeError:
        return f"{repr(value)[:60]} is no index"


def _complaints(timesteps: int, first: int | str, second: int | str, lengths: tuple[int, ...]) -> Iterator[str]:
    if isinstance(first, str):
        yield first
    elif not 0 <= first < len(lengths):
        yield f"{first}, but the lengths have the indices 0 to {len(lengths) - 1}"
    elif lengths[first] < timesteps:
        yield f"{first}, which is the length {lengths[first]}: too short"
    elif first != second:
        yield f"{first}, and {second} when called again"
