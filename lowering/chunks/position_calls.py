"""Calls in a chunk program that compute from the positions of timesteps: each row has its own."""

from __future__ import annotations

from functools import partial

import torch
from torch.fx import Node, map_arg

from ..exporter.subgraph import SubgraphBuilder
from ..proof.graph_calls import argument, operator_name, rank
from .past_calls import Copies
from .positions import MOVING, RESHAPING, PositionValues, is_pointwise

_aten = torch.ops.aten


class PositionCalls:
    """The calls of a chunk program that combine values of positions with values of rows.

    A value of shape [*s] becomes one of shape [B, *s], with 1 where the model has its own dimension of rows.
    """

    def __init__(self, builder: SubgraphBuilder, values: PositionValues, before: Node) -> None:
        self._builder, self._values = builder, values
        self._before = before
        """The number of timesteps before the chunk, [B]."""
        self._made: dict[Node, Node] = {}

    def replace(self) -> None:
        """Let the program make these calls."""
        for call in self._values.calls:
            self._builder.replace_call(call, self._sources(call), partial(self._combined, call))

    def _sources(self, call: Node) -> list[Node]:
        """Return what the call needs of the model's own graph: all but the values of positions."""
        sources: list[Node] = []
        pending = [call]
        while pending:
            for source in pending.pop().all_input_nodes:
                is_computed = source in self._values and operator_name(source) != "aten.arange"
                (pending if is_computed else sources).append(source)
        return sources

    def _combined(self, call: Node, copies: Copies) -> Node:
        def value(node: Node) -> Node:
            return self._as_in_model(node, call, copies) if node in self._values else copies(node)

        arguments, options = map_arg((call.args, call.kwargs), value)
        return self._builder.call(call.target, *arguments, **options)  # type: ignore[arg-type]  # an operator

    def _as_in_model(self, node: Node, call: Node, copies: Copies) -> Node:
        """The value with its rows where the call has them."""
        value, rows = self._value(node, copies), self._values.batch_dim(node)
        if rows is None:
            rows = self._values.batch_dim(call)
            value = self._with_rank(value, node, rank(call))
        assert rows is not None
        squeezed = self._builder.call(_aten.squeeze.dim, value, rows + 1)
        return self._builder.call(_aten.movedim.int, squeezed, 0, rows) if rows else squeezed

    def _with_rank(self, value: Node, node: Node, dimensions: int) -> Node:
        """The value of a node with more dimensions, as broadcasting adds them."""
        for _ in range(dimensions - rank(node)):
            value = self._builder.call(_aten.unsqueeze.default, value, 1)
        return value

    def _value(self, node: Node, copies: Copies) -> Node:
        if node not in self._made:
            self._made[node] = self._make(node, copies)
        return self._made[node]

    def _make(self, node: Node, copies: Copies) -> Node:
        name, call = operator_name(node), self._builder.call
        if name == "aten.arange":
            before = call(_aten.unsqueeze.default, self._before, 1)
            return call(_aten.add.Tensor, copies(node), call(_aten.to.dtype, before, node.meta["val"].dtype))
        if is_pointwise(node):
            return self._elementwise(node, copies)
        source = next(source for source in node.all_input_nodes if source in self._values)
        value = self._value(source, copies)
        if name in MOVING:
            return self._moved(node, source, value, copies)
        if name in RESHAPING:
            dimensions = rank(node) if name == "aten.expand" else rank(source)
            return self._reshaped(node, self._with_rank(value, source, dimensions), copies)
        return call(_aten.to.dtype, value, node.meta["val"].dtype)

    def _elementwise(self, node: Node, copies: Copies) -> Node:
        def aligned(source: Node) -> Node:
            if source not in self._values:
                return copies(source)
            return self._with_rank(self._value(source, copies), source, rank(node))

        arguments, options = map_arg((node.args, node.kwargs), aligned)
        return self._builder.call(node.target, *arguments, **options)  # type: ignore[arg-type]  # an operator

    def _reshaped(self, node: Node, value: Node, copies: Copies) -> Node:
        """The sizes that the model gives to a tensor, 1 for its own rows, and the rows before them."""
        own = self._values.batch_dim(node)
        given = argument(node, "shape") or argument(node, "size")
        sizes = [copies(size) if isinstance(size, Node) else size for size in given]
        rows = self._builder.call(_aten.sym_size.int, self._builder.lengths, 0)
        sizes = [rows, *(1 if dim == own else size for dim, size in enumerate(sizes))]
        return self._builder.call(node.target, value, sizes)  # type: ignore[arg-type]  # an operator

    def _moved(self, node: Node, source: Node, value: Node, copies: Copies) -> Node:
        """The same dimensions moved or cut, one place further."""
        name, call = operator_name(node), self._builder.call
        if name == "aten.permute":
            return call(_aten.permute.default, value, [0, *(1 + dim % rank(source) for dim in argument(node, "dims"))])
        if name == "aten.transpose":
            dims = [1 + argument(node, dim) % rank(source) for dim in ("dim0", "dim1")]
            return call(_aten.transpose.int, value, *dims)
        if name == "aten.slice":
            own = argument(node, "dim") % rank(source)
            return call(_aten.slice.Tensor, value, 1 + own, *map_arg(node.args[2:], copies))
        return call(_aten.unsqueeze.default, value, 1 + argument(node, "dim") % rank(node))
