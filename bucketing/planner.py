"""One planner for each kind of program and each kind of engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from .batch_planner import FreePartition, GridPartition, KernelPartition
from .bucketed_chunks import GridStaircase
from .cost import CostModel
from .dynamic_chunks import FreeStaircase
from .plan import Plan
from .shapes import BucketGrid, Shapes

Kind = Literal["sequence", "chunk"]


class Planner(Protocol):
    """Lengths to the cheapest plan. Built once for an archive; it keeps nothing of the batches that it planned."""

    @property
    def cost(self) -> CostModel:
        """What the runs of its plans cost."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest plan for requests of these lengths.

        Raises:
            SequenceTooLong, LengthNotAccepted: a length that is not served.
            ValueError: a length below 1.
        """


def planner_for(
    kind: Kind,
    shapes: Shapes,
    cost: CostModel,
    *,
    padded: bool = True,
    longest: int | None = None,
    head_cost: CostModel | None = None,
    table: tuple[int, ...] | None = None,
) -> Planner:
    """The planner for programs of this kind on an engine that takes these shapes.

    `padded` is for `sequence` programs: False where padding would change the answers. `longest` is the longest sequence
    served by `chunk` programs of fixed shapes, which have no limit of their own, and `head_cost` what their head costs
    over buckets of length 1; None: no limit, and a stand-in. `table` is for `sequence` programs on a grid, where the
    user chooses the bucket length for 1, 2, 3, ... timesteps; None: whatever costs least.
    """
    if kind == "chunk":
        if isinstance(shapes, BucketGrid):
            return GridStaircase(shapes, cost, longest, head_cost)
        return FreeStaircase(shapes, cost)
    if isinstance(shapes, BucketGrid):
        if table is not None:
            return KernelPartition(shapes, cost, table)
        return GridPartition(shapes, cost, padded)
    return FreePartition(shapes, cost, padded)
