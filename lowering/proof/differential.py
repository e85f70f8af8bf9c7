"""Differential test for padding: the graph runs with different padding, and the outputs are compared.

For a model that masks by lengths, the graph alone often cannot show that the masks are right (a masked softmax, a
pooling). So the same requests run alone and in two longer buckets, with different random values in the padding. If an
output differs, the first value that differs and is computed from equal timesteps gives the line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import Axis, BucketGrid, TensorSpec
from ..errors import LoweringError, UnknownRange, at_line, node_line
from ..outputs import axis_of, output_nodes, symbolic_sizes
from .graph_calls import display_name

_LENGTHS = (8, 5, 3, 2, 1, 1)
_SCALE = 1e3
_TOLERANCE = 1e-4  # far above rounding errors (1e-6), far below the effect of padding of size 1e3 or of a wrong carry

NodeValues = dict[str, Any]


def reject_padding_sensitive_outputs(
    exported: ExportedProgram, inputs: Sequence[TensorSpec], grid: BucketGrid, *, scale: float = _SCALE
) -> None:
    """Run requests alone and in two longer buckets, and compare the outputs.

    Padding is drawn at random, times `scale`. Then the same is done with requests that hold only what padding holds
    when it is served, zeros or `pad_value`: a mask computed from the values takes those for padding.

    Raises:
        LoweringError: an output changes with the padding; names the user's line.
        UnknownRange: the model fails on the values.
    """
    _compare_padded(exported, inputs, grid, scale, blank=False)
    if scale == _SCALE:
        with contextlib.suppress(UnknownRange):  # the model takes no such request
            _compare_padded(exported, inputs, grid, scale, blank=True)


def _compare_padded(
    exported: ExportedProgram, inputs: Sequence[TensorSpec], grid: BucketGrid, scale: float, *, blank: bool
) -> None:
    lengths = [min(length, grid.lengths[-1]) for length in _LENGTHS]
    if not any(spec.batch_dim is not None for spec in inputs):
        lengths = lengths[1:2]
    graph = exported.module()
    axes = symbolic_sizes(exported, inputs)
    layouts = _layouts(exported, axes)

    def run(rows: Sequence[int], timesteps: int, seed: int) -> NodeValues:
        """Run at the nearest sizes that the program allows, because code such as `x[:, :-1]` excludes some."""
        rows = [rows[index % len(rows)] for index in range(_allowed(exported, axes, "batch", len(rows)))]
        tensors = _batch(inputs, lengths, rows, _allowed(exported, axes, "time", timesteps), seed, scale, blank=blank)
        try:
            return _values(graph, tensors)
        except (RuntimeError, IndexError) as error:
            raise UnknownRange(
                f"the model fails on values drawn at random: {str(error).splitlines()[0]}. Give the values that it "
                "takes as `range: [least, largest]` of each input under `inputs`, both included"
            ) from error

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
        raise _padding_refusal(_first_mixing(differing, layouts), blank=blank)


def _padding_refusal(culprit: torch.fx.Node, *, blank: bool) -> LoweringError:
    """Name the operator that mixes real and padded timesteps, and what to write instead."""
    mixes = f"{display_name(culprit)} mixes real and padded timesteps{at_line(culprit)}"
    if blank:
        return LoweringError(
            f"a request of zeros or `pad_value` only would get different outputs in a longer bucket: {mixes}. Mask the "
            "padded timesteps by their lengths, not by their values; or, if no request has that value, exclude it "
            "with `range: [least, largest]` of the input under `inputs`"
        )
    return LoweringError(
        f"padding reaches an output in spite of `lengths`: {mixes}. A request would get different outputs in a longer "
        "bucket. Mask the padded timesteps before that line, or divide by lengths instead of the padded size."
    )


def _allowed(exported: ExportedProgram, axes: dict[Axis, Any], axis: Axis, wish: int) -> int:
    """Return the size nearest to `wish` that the program was exported for."""
    size = axes.get(axis)
    allowed = exported.range_constraints.get(size.node.expr) if isinstance(size, torch.SymInt) else None
    return wish if allowed is None else int(max(allowed.lower, min(allowed.upper, wish)))


def _ends(lengths: Sequence[int], count: int) -> list[int]:
    """Return at most `count` of the lengths, with the longest and the shortest.

    >>> _ends([8, 5, 3, 1], 2)
    [8, 1]
    """
    return list(lengths) if count >= len(lengths) else [*lengths[: count - 1], lengths[-1]]


def _first_mixing(differing: Sequence[torch.fx.Node], layouts: dict[str, _Layout]) -> torch.fx.Node:
    """Return the first differing value computed from equal timesteps or from their number."""

    def mixes(source: torch.fx.Node) -> bool:
        if isinstance(source.meta.get("val"), (tuple, list)):  # y.max(1) returns values and indices
            return any(mixes(further) for further in source.all_input_nodes)
        return source not in differing and source.name in layouts and bool(layouts[source.name].time)

    mixing = (node for node in differing if any(mixes(source) for source in node.all_input_nodes))
    return next((node for node in mixing if node_line(node) is not None), differing[0])


def _batch(
    inputs: Sequence[TensorSpec],
    lengths: Sequence[int],
    rows: Sequence[int],
    padded: int,
    seed: int,
    scale: float,
    *,
    blank: bool,
) -> list[torch.Tensor]:
    """Build a batch of requests; they are the same for every seed, which determines the padding."""
    tensors = []
    for spec in inputs:
        tensor = random_padding(spec, spec.sizes(len(rows), padded), torch.Generator().manual_seed(seed), scale)
        for index, row in enumerate(rows):
            request = torch.Generator().manual_seed(1000 + row)
            part = tensor if spec.batch_dim is None else tensor.select(spec.batch_dim, index)
            if spec.time_dim is not None:
                part = part.narrow(spec.item_shape.index("time"), 0, lengths[row])
            part.copy_(_blank(spec, part) if blank else random_tensor(spec, tuple(part.shape), request))
        tensors.append(tensor)
    return [*tensors, torch.tensor([lengths[row] for row in rows])]


def _blank(spec: TensorSpec, like: torch.Tensor) -> torch.Tensor:
    """Return what serving writes into padding, or the value of the input's range that is nearest to it."""
    value = 0.0 if torch_dtype(spec).is_floating_point else spec.pad_value
    lowest, highest = spec.value_range or (value, value)
    return torch.full_like(like, max(lowest, min(highest, value)))


def random_tensor(
    spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator, *, scale: float = 1.0, unknown_ids: int = 2
) -> torch.Tensor:
    """Draw a tensor of an input within its range.

    Without one, ids are below its vocabulary, or below `unknown_ids` if that is unknown.
    """
    dtype = torch_dtype(spec)
    if spec.value_range is not None and scale == 1:
        return _uniform(spec.value_range, shape, generator, dtype)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * scale).to(dtype)
    limit = 2 if dtype is torch.bool else spec.vocabulary or unknown_ids
    return torch.randint(0, limit, shape, generator=generator).to(dtype)


def _uniform(
    limits: tuple[float, float], shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    least, largest = limits
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator, dtype=torch.float64) * (largest - least) + least).to(dtype)
    return torch.randint(int(least), int(largest) + 1, shape, generator=generator).to(dtype)


def random_padding(
    spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator, scale: float = 1e3
) -> torch.Tensor:
    """Draw numbers times `scale`; or in an input of integers its `pad_value`, as serving writes it."""
    if torch_dtype(spec).is_floating_point:
        return random_tensor(spec, shape, generator, scale=scale)
    return torch.full(shape, spec.pad_value).to(torch_dtype(spec))


@dataclass(frozen=True)
class _Layout:
    """Dimensions of batch and time in a node's tensor. A node that *is* the number of timesteps has time only."""

    batch: int | None
    time: tuple[int, ...]


def _layouts(exported: ExportedProgram, axes: dict[Axis, Any]) -> dict[str, _Layout]:
    """Find the nodes whose real part is known: those that do not merge batch and time into one dimension."""
    layouts: dict[str, _Layout] = {}
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and axis_of(value, axes) == "time":
            layouts[node.name] = _Layout(None, (0,))
        if node.op not in ("call_function", "placeholder") or not isinstance(value, torch.Tensor):
            continue
        named = [axis_of(size, axes) for size in value.shape]
        pairs = zip(named, value.shape, strict=True)
        if all(axis is not None or not isinstance(size, torch.SymInt) for axis, size in pairs):
            time = tuple(dim for dim, axis in enumerate(named) if axis == "time")
            layouts[node.name] = _Layout(named.index("batch") if "batch" in named else None, time)
    return layouts


def _values(graph: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> NodeValues:
    values: NodeValues = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            values[n.name] = super().run_node(n)
            return values[n.name]

    with torch.no_grad():
        Recorder(graph).run(*tensors)
    return values


def _differs(
    name: str, layouts: dict[str, _Layout], alone: Sequence[NodeValues], padded: NodeValues, lengths: Sequence[int]
) -> bool:
    """Whether the real part of a value in the padded batch differs from a request alone."""
    layout = layouts[name]
    for row, length in enumerate(lengths):
        ours, theirs = padded[name], alone[row][name]
        for dim in layout.time:
            ours, theirs = ours.narrow(dim, 0, length), theirs.narrow(dim, 0, length)
        if layout.batch is not None:
            ours, theirs = ours.select(layout.batch, row), theirs.select(layout.batch, 0)
        if ours.shape != theirs.shape or not is_close(ours, theirs):
            return True
    return False


def is_close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two results of the same computation differ by rounding only."""
    return torch.allclose(ours.double(), theirs.double(), _TOLERANCE, _TOLERANCE, equal_nan=True)
