"""A model that can be cut into pieces of time, as programs: for a piece of every sequence, and for its two ends.

The programs are made by copying nodes of the lowered graph, with the carried values as further inputs, and exporting
the copies. Parameters keep their names.

Carried values have their rows in front at the border of a program, wherever the model has them: so those of a batch's
first rows are a stretch of memory, and going on with fewer rows copies nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from ..bucketing.shapes import Axis, CarriedValue, DType, TensorSpec
from .carry_analysis import CarrySource, NotChunkable, constant_value, find_carried_values, initial_state_node
from .errors import node_line, source_suffix
from .outputs import axis_of, output_nodes, symbolic_sizes
from .program import ChunkPrograms
from .subgraph import SubgraphBuilder

LENGTHS = TensorSpec("sequence_lengths", "int64", ("batch",))

_COMBINE: dict[str, Callable[..., Any]] = {
    "sum": torch.ops.aten.add.Tensor,
    "max": torch.ops.aten.maximum.default,
    "min": torch.ops.aten.minimum.default,
}


def build_chunk_programs(
    exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], takes_lengths: bool
) -> ChunkPrograms:
    """The programs of a model that can be cut into pieces of time.

    Raises:
        NotChunkable: with the line that needs a whole sequence.
    """
    parts = _Parts(exported, inputs, find_carried_values(exported, inputs, takes_lengths))
    try:
        return ChunkPrograms(parts.chunk(), parts.head(), parts.start(), parts.carried)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise NotChunkable(f"a piece of it cannot be exported for every shape: {first}") from error


class _Parts:
    """The three programs of one model."""

    def __init__(
        self, exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], carries: Sequence[CarrySource]
    ) -> None:
        self.exported, self.carries = exported, carries
        self.axes = symbolic_sizes(exported, inputs)
        self.inputs = [*inputs, LENGTHS]
        self.free_inputs = [spec if spec.time_dim is None else None for spec in self.inputs]
        self.carried = tuple(CarriedValue(self.spec_of(carry), self.fill(carry)) for carry in carries)
        answers = output_nodes(exported)
        self.step_answers = [node for node in answers if self.has_time(node)]
        self.final_answers = [node for node in answers if not self.has_time(node)]

    def has_time(self, node: torch.fx.Node) -> bool:
        return any(axis_of(size, self.axes) == "time" for size in node.meta["val"].shape)

    def spec_of(self, carry: CarrySource) -> TensorSpec:
        """The layout of a carried value, rows in front.

        Raises:
            NotChunkable: it is not one value for each row.
        """
        shape = tuple(axis_of(size, self.axes) or size for size in carry.value.shape)
        if shape.count("batch") != 1 or not all(isinstance(size, (int, str)) for size in shape):
            raise NotChunkable(f"{carry.name} is not one value for each sequence{source_suffix(node_line(carry.node))}")
        dtype = cast(DType, str(carry.value.dtype).removeprefix("torch."))
        rows_first = ("batch", *(size for size in shape if size != "batch"))
        return TensorSpec(carry.name, dtype, cast(tuple[int | Axis, ...], rows_first))

    def batch_dim(self, carry: CarrySource) -> int:
        """Where the model itself has the rows of a carried value."""
        return [axis_of(size, self.axes) for size in carry.value.shape].index("batch")

    def taken(self, copy: SubgraphBuilder) -> list[torch.fx.Node]:
        """Further inputs for the carried values, as the model has them."""
        inputs = [copy.placeholder(f"carried_{index}") for index in range(len(self.carries))]
        return [_moved(copy, node, 0, self.batch_dim(carry)) for node, carry in zip(inputs, self.carries, strict=True)]

    def given(
        self, copy: SubgraphBuilder, values: Sequence[torch.fx.Node], carries: Sequence[CarrySource]
    ) -> list[torch.fx.Node]:
        """Values as the model has them, as outputs."""
        return [_moved(copy, node, self.batch_dim(carry), 0) for node, carry in zip(values, carries, strict=True)]

    def fill(self, carry: CarrySource) -> float | None:
        """What a carried value is before the first timestep; None where the model computes it."""
        if carry.kind == "state":
            return constant_value(initial_state_node(carry))
        if carry.kind in ("last", "sum"):
            return 0.0
        least, most = _range(carry.value.dtype)
        return least if carry.kind == "max" else most

    def chunk(self) -> torch.export.ExportedProgram:
        """Inputs, lengths within the piece, carried -> the answers of each timestep, carried after the piece."""
        copy = SubgraphBuilder(self.exported, self.axes, self.inputs)
        carried = self.taken(copy)
        for carry, value in zip(self.carries, carried, strict=True):
            if carry.kind == "state":
                copy.replace_argument(carry.node, 1 + carry.element, value)
        copy.keep_cell_states()
        wanted = [*self.step_answers, *(carry.node for carry in self.carries)]
        steps = copy.copy_nodes(wanted)[
            : len(self.step_answers)
        ]  # all at once: in the order in which they were written
        after = [_after(copy, carry, value) for carry, value in zip(self.carries, carried, strict=True)]
        return copy.export(
            [*steps, *self.given(copy, after, self.carries)], [*self.inputs, *(value.spec for value in self.carried)]
        )

    def head(self) -> torch.export.ExportedProgram | None:
        """Inputs without time, whole lengths, carried -> the answers without time; None where there are none."""
        if not self.final_answers:
            return None
        copy = SubgraphBuilder(self.exported, self.axes, self.free_inputs)
        for carry, value in zip(self.carries, self.taken(copy), strict=True):
            copy.substitute(carry.results(), value)
        specs = [*filter(None, self.free_inputs), *(value.spec for value in self.carried)]
        return copy.export(copy.copy_nodes(self.final_answers), specs)

    def start(self) -> torch.export.ExportedProgram | None:
        """Inputs without time, whole lengths -> the carried values that begin as no number; None where all do."""
        computed = [c for c, value in zip(self.carries, self.carried, strict=True) if value.fill is None]
        if not computed:
            return None
        copy = SubgraphBuilder(self.exported, self.axes, self.free_inputs)
        begins = copy.copy_nodes([initial_state_node(carry) for carry in computed])
        return copy.export(self.given(copy, begins, computed), [*filter(None, self.free_inputs)])


def _after(copy: SubgraphBuilder, carry: CarrySource, before: torch.fx.Node) -> torch.fx.Node:
    """A carried value after the piece."""
    (made,) = copy.copy_nodes([carry.node])
    if carry.kind == "state":
        return copy.call(operator.getitem, made, carry.element)
    return made if carry.kind == "last" else copy.call(_COMBINE[carry.kind], before, made)


def _moved(copy: SubgraphBuilder, node: torch.fx.Node, dim: int, to: int) -> torch.fx.Node:
    """A tensor with one dimension in another place, contiguous."""
    if dim == to:
        return node
    moved = copy.call(torch.ops.aten.movedim.int, node, dim, to)
    return copy.call(torch.ops.aten.contiguous.default, moved)


def _range(dtype: torch.dtype) -> tuple[float, float]:
    """What no value of a dtype is below, and what none is above."""
    if dtype.is_floating_point:
        return float("-inf"), float("inf")
    return (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
