"""One planner for each kind of program and each kind of engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from .batch_planner import BucketPlanner, DynamicPlanner, SelectedBucketPlanner
from .bucketed_chunks import BucketedChunkPlanner
from .cost import CostModel
from .dynamic_chunks import DynamicChunkPlanner
from .plan import Plan
from .shapes import BucketGrid, Shapes

ExecutionMode = Literal["sequence", "chunk"]


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
    """The planner for programs of this kind on an engine that takes these shapes.

    `padded` is for `sequence` programs: False where padding would change the answers. `longest` is the longest sequence
    served by `chunk` programs of fixed shapes, which have no limit of their own, and `head_cost` what their head costs
    over buckets of length 1; None: no limit, and a stand-in. `table` is for `sequence` programs on a grid, where the
    user chooses the bucket length for 1, 2, 3, ... timesteps; None: whatever costs least.
    """
    if kind == "chunk":
        if isinstance(shapes, BucketGrid):
            return BucketedChunkPlanner(shapes, cost, longest, head_cost)
        return DynamicChunkPlanner(shapes, cost)
    if isinstance(shapes, BucketGrid):
        if table is not None:
            return SelectedBucketPlanner(shapes, cost, table)
        return BucketPlanner(shapes, cost, padded)
    return DynamicPlanner(shapes, cost, padded)
