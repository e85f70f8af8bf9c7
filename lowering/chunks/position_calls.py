"""Calls in a chunk program that compute from the positions of timesteps: each row has its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch.fx import Node, map_arg

from ..exporter.subgraph import SubgraphBuilder
from ..graph_calls import argument, operator_name, rank
from ..outputs import axis_of
from .past_calls import Copies
from .timestep_rules import CONVERSIONS, INDEPENDENT, TaintMap

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
        if _is_pointwise(node):
            return self._elementwise(node, copies)
        source = next(source for source in node.all_input_nodes if source in self._values)
        value = self._value(source, copies)
        if name == _LAYER:
            return call(node.target, value, *map_arg(node.args[1:], copies))  # type: ignore[arg-type]  # an operator
        if name in _MOVING:
            return self._moved(node, source, value, copies)
        if name in _RESHAPING:
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


_LAYER = "aten.linear"
_RESHAPING = {"aten.view", "aten.reshape", "aten._unsafe_view", "aten.expand"}
_MOVING = {"aten.unsqueeze", "aten.transpose", "aten.permute", "aten.slice"}
_LOOKUPS = {"aten.embedding", "aten.index", "aten.index_select", "aten.gather", "aten.one_hot"}
"""Operators that take positions as indices: a table ends, and a session may be longer."""


class PositionValues:
    """The values computed from positions and constants alone, among the nodes visited so far."""

    def __init__(self, taints: TaintMap, positions: Mapping[Node, int]) -> None:
        self._taints, self._positions = taints, positions
        self._computed: set[Node] = set()
        self.calls: list[Node] = []
        """Calls that combine such values with those of a row."""

    def __contains__(self, node: object) -> bool:
        return node in self._computed or node in self._positions

    def follow(self, node: Node) -> bool:
        """Record a call with such values among its arguments; False if a chunk cannot compute it."""
        name, sources = operator_name(node), node.all_input_nodes
        if not any(source in self for source in sources):
            return False
        others = [source for source in sources if source not in self and not _is_number(source)]
        if _is_pointwise(node) and any(map(self._taints.is_time_expression, sources)):
            return False  # a value depends on the number of timesteps
        of, batch_dim = self._taints.of, self.batch_dim
        if self._has_rule(node, name) and all(of.get(o) == INDEPENDENT and batch_dim(o) is None for o in others):
            self._computed.add(node)
            return True
        if name in _LOOKUPS or batch_dim(node) is None:
            return False
        # broadcasting finds the rows of others
        if not _is_pointwise(node) and any(s in self and batch_dim(s) is None for s in node.all_input_nodes):
            return False
        self.calls.append(node)
        return True

    def batch_dim(self, node: Node) -> int | None:
        """Return the batch dimension of a node's tensor; None if it has none, or no one tensor."""
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        found = [dim for dim, size in enumerate(shape) if axis_of(size, self._taints.axes) == "batch"]
        return found[0] if len(found) == 1 else None

    def _has_rule(self, node: Node, name: str) -> bool:
        """Whether a chunk program can compute this call for each row."""
        source = node.all_input_nodes[0]
        if self.batch_dim(source) is not None and self.batch_dim(node) is None:
            return False
        computed = {_LAYER, *CONVERSIONS, *_RESHAPING, *_MOVING}
        return _is_pointwise(node) or name in computed


def _is_pointwise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or operator_name(node) == "aten.where"


def _is_number(node: Node) -> bool:
    return not isinstance(node.meta.get("val"), torch.Tensor)
