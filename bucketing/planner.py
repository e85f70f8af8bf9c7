"""Planner protocol; choice of a planner by execution mode and by the shapes that an engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from .batch_planner import BucketPlanner, DynamicPlanner
from .bucketed_chunks import BucketedChunkPlanner
from .cost import CostModel
from .dynamic_chunks import DynamicChunkPlanner
from .plan import Plan
from .shapes import BucketGrid, Shapes

ExecutionMode = Literal["sequence", "chunk"]


class Planner(Protocol):
    """Function from lengths to the cheapest plan. Built once for an archive; planning keeps no state."""

    @property
    def cost(self) -> CostModel:
        """Cost model of the calls of its plans."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """Return the cheapest plan for requests of these lengths.

        Raises:
            SequenceTooLong, LengthNotAccepted: a length that is not served.
            ValueError: a length below 1.
        """


def make_planner(
    kind: ExecutionMode,
    shapes: Shapes,
    cost: CostModel,
    *,
    padded: bool = True,
    longest: int | None = None,
    head_cost: CostModel | None = None,
    table: tuple[int, ...] | None = None,
) -> Planner:
    """Build the planner for programs of this kind on an engine that takes these shapes.

    `padded` applies to `sequence` programs: False if padding would change the outputs. `longest` is the longest
    sequence served by `chunk` programs of fixed shapes, which have no limit; None: no limit. `head_cost`
    is the cost of their head over buckets of length 1; None: an estimate. `table` applies to `sequence` programs on a
    grid: the bucket length that the user selects for 1, 2, 3, ... timesteps; None: chosen by cost.
    """
    if kind == "chunk":
        if isinstance(shapes, BucketGrid):
            return BucketedChunkPlanner(shapes, cost, longest, head_cost)
        return DynamicChunkPlanner(shapes, cost)
    if isinstance(shapes, BucketGrid):
        return BucketPlanner(shapes, cost, padded, table)
    return DynamicPlanner(shapes, cost, padded)
