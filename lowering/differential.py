"""Finding the line through which padding reaches an answer, by running the graph twice with other padding in it.

For a model that is given lengths and masks by them, the graph alone often cannot show that the masks are right (a
masked softmax, a pooling). So the same requests are run alone and in two longer buckets, with different garbage in the
padding: an answer that differs has been reached, and the first value made wrong out of timesteps names the line.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..bucketing.shapes import Axis, BucketGrid, TensorSpec
from .errors import LoweringError, node_line, source_suffix
from .outputs import axis_of, output_nodes, symbolic_sizes

_LENGTHS = (8, 5, 3, 2, 1, 1)
_TOLERANCE = 1e-4  # far above rounding (1e-6), far below what garbage of size 1e3 does

NodeValues = dict[str, Any]


def reject_padding_sensitive_outputs(
    exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], grid: BucketGrid
) -> None:
    """Run requests alone and in two longer buckets, and compare.

    Raises:
        LoweringError: an answer changes with the padding, naming the user's line.
    """
    lengths = [min(length, grid.lengths[-1]) for length in _LENGTHS]
    if not any(spec.batch_dim is not None for spec in inputs):
        lengths = lengths[1:2]
    graph = exported.module()
    axes = symbolic_sizes(exported, inputs)
    layouts = _layouts(exported, axes)

    def run(rows: Sequence[int], timesteps: int, seed: int) -> NodeValues:
        """As near to these sizes as the program allows: `x[:, :-1]` holds it to its smallest bucket."""
        rows = [rows[place % len(rows)] for place in range(_allowed(exported, axes, "batch", len(rows)))]
        return _values(graph, _batch(inputs, lengths, rows, _allowed(exported, axes, "time", timesteps), seed))

    lengths = _ends(lengths, _allowed(exported, axes, "batch", len(lengths)))
    alone = [run([row], length, seed=0) for row, length in enumerate(lengths)]
    padded = [run(range(len(lengths)), max(lengths) + more, seed=more) for more in (1, 5)]
    differing = [
        node
        for node in exported.graph.nodes
        if node.op == "call_function"
        and node.name in layouts
        and isinstance(node.meta["val"], torch.Tensor)
        and any(_differs(node.name, layouts, alone, values, lengths) for values in padded)
    ]
    if any(node in differing for node in output_nodes(exported)):
        culprit = _first_mixing(differing, layouts)
        raise LoweringError(
            f"padding reaches an answer in spite of `lengths`: {_operator(culprit)} mixes real and padded timesteps"
            f"{source_suffix(node_line(culprit))}. A request would get another answer in a longer bucket than alone. "
            "Mask the padded timesteps before that line, or divide by lengths instead of the padded size."
        )


def _allowed(exported: torch.export.ExportedProgram, axes: dict[Axis, Any], axis: Axis, wish: int) -> int:
    """The size nearest to the wish that the program was exported for."""
    size = axes.get(axis)
    allowed = exported.range_constraints.get(size.node.expr) if isinstance(size, torch.SymInt) else None
    return wish if allowed is None else int(max(allowed.lower, min(allowed.upper, wish)))


def _ends(lengths: Sequence[int], count: int) -> list[int]:
    """At most so many of them, the longest and the shortest first of all.

    >>> _ends([8, 5, 3, 1], 2)
    [8, 1]
    """
    return list(lengths) if count >= len(lengths) else [*lengths[: count - 1], lengths[-1]]


def _first_mixing(differing: Sequence[torch.fx.Node], layouts: dict[str, _Layout]) -> torch.fx.Node:
    """The first value made wrong out of timesteps, or of their number; not one that inherits it."""

    def mixes(source: torch.fx.Node) -> bool:
        if isinstance(source.meta.get("val"), (tuple, list)):  # y.max(1) gives values and indices
            return any(mixes(further) for further in source.all_input_nodes)
        return source not in differing and source.name in layouts and bool(layouts[source.name].time)

    mixing = (node for node in differing if any(mixes(source) for source in node.all_input_nodes))
    return next((node for node in mixing if node_line(node) is not None), differing[0])


def _operator(node: torch.fx.Node) -> str:
    """`aten.mean`; for an element of a tuple the operator that gave the tuple."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return ".".join(str(node.target).split(".")[:2])


def _batch(
    inputs: Sequence[TensorSpec], lengths: Sequence[int], rows: Sequence[int], padded: int, seed: int
) -> list[torch.Tensor]:
    """Some of the requests, the same ones whatever the seed; the seed fills the padding."""
    tensors = []
    for spec in inputs:
        tensor = _random(spec, spec.sizes(len(rows), padded), torch.Generator().manual_seed(seed), scale=1e3)
        for place, row in enumerate(rows):
            request = torch.Generator().manual_seed(1000 + row)
            part = tensor if spec.batch_dim is None else tensor.select(spec.batch_dim, place)
            if spec.time_dim is not None:
                part = part.narrow(spec.item_shape.index("time"), 0, lengths[row])
            part.copy_(_random(spec, tuple(part.shape), request, scale=1.0))
        tensors.append(tensor)
    return [*tensors, torch.tensor([lengths[row] for row in rows])]


def _random(spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator, scale: float) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * scale).to(dtype)
    top = spec.vocabulary if spec.vocabulary is not None else 2
    return torch.randint(0, top, shape, generator=generator).to(dtype)


@dataclass(frozen=True)
class _Layout:
    """Where batch and time are in a node's tensor; a node that *is* the number of timesteps has time alone."""

    batch: int | None
    time: tuple[int, ...]


def _layouts(exported: torch.export.ExportedProgram, axes: dict[Axis, Any]) -> dict[str, _Layout]:
    """The nodes whose real part can be told: those in which batch and time are not folded into one dimension."""
    layouts: dict[str, _Layout] = {}
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and axis_of(value, axes) == "time":
            layouts[node.name] = _Layout(None, (0,))
        if node.op not in ("call_function", "placeholder") or not isinstance(value, torch.Tensor):
            continue
        named = [axis_of(size, axes) for size in value.shape]
        if all(
            axis is not None or not isinstance(size, torch.SymInt)
            for axis, size in zip(named, value.shape, strict=True)
        ):
            time = tuple(dim for dim, axis in enumerate(named) if axis == "time")
            layouts[node.name] = _Layout(named.index("batch") if "batch" in named else None, time)
    return layouts


def _values(graph: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> NodeValues:
    """What every node of the graph computes."""
    seen: NodeValues = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            seen[n.name] = super().run_node(n)
            return seen[n.name]

    with torch.no_grad():
        Recorder(graph).run(*tensors)
    return seen


def _differs(
    name: str, layouts: dict[str, _Layout], alone: Sequence[NodeValues], padded: NodeValues, lengths: Sequence[int]
) -> bool:
    """Whether the real part of a value in the padded batch is another than in a request alone."""
    layout = layouts[name]
    for row, length in enumerate(lengths):
        ours, theirs = padded[name], alone[row][name]
        for dim in layout.time:
            ours, theirs = ours.narrow(dim, 0, length), theirs.narrow(dim, 0, length)
        if layout.batch is not None:
            ours, theirs = ours.select(layout.batch, row), theirs.select(layout.batch, 0)
        if ours.shape != theirs.shape or not torch.allclose(
            ours.double(), theirs.double(), _TOLERANCE, _TOLERANCE, equal_nan=True
        ):
            return True
    return False
