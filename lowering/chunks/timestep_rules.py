"""Timestep taint analysis: which values of a program over ragged batches depend on one timestep alone.

The analysis is an abstract interpretation of the graph over three taints. `INDEPENDENT`: a value depends on no timestep
beyond a row's own, and has none itself. `PER_TIMESTEP`: it has one time dimension, and its values at a timestep depend
on no other one, but through a recurrence or a sum. Otherwise it is `Tainted`, with the operator that made it so. The
result of an operator without a rule is tainted: so the analysis may reject a model, but never accepts a wrong one.

A rule is given a call with at least one PER_TIMESTEP input and no Tainted one. It decides whether the call is
timestep-local: the result is independent of the timesteps, or depends at each timestep on that one alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...backends.recurrent_operators import is_recurrent
from ...bucketing.shapes import Axis
from ..errors import node_line
from ..exported_graph import argument, aten_names, axis_of, class_count, dims_argument, operator_name, rank, rule_table
from ..ragged.sizes import product


@dataclass(frozen=True)
class Tainted:
    """Taint of a value at a timestep that depends, or may depend, on other timesteps."""

    operator: str
    line: str | None


Taint = Literal["independent", "per_timestep"] | Tainted
INDEPENDENT: Taint = "independent"
PER_TIMESTEP: Taint = "per_timestep"


class TaintMap:
    """Taints of the nodes visited so far, and the time dimensions of nodes."""

    def __init__(self, axes: dict[Axis, Any], lengths: Node | None) -> None:
        self.axes, self.lengths = axes, lengths
        self.of: dict[Node, Taint] = {}

    def is_time_expression(self, argument: object) -> bool:
        """Whether an argument is a number computed from the number of padded timesteps."""
        value = argument.meta.get("val") if isinstance(argument, Node) else None
        return isinstance(value, (torch.SymInt, torch.SymFloat)) and self.has_time(value)

    def has_time(self, size: Any) -> bool:
        """Whether a size is an expression of the number of padded timesteps."""
        symbols: Any = self.axes["time"].node.expr.free_symbols
        return not isinstance(size, int) and not symbols.isdisjoint(size.node.expr.free_symbols)

    def time_dims(self, node: object) -> list[int]:
        """Return the dimensions of a node's tensor that are time."""
        value = node.meta.get("val") if isinstance(node, Node) else None
        if not isinstance(value, torch.Tensor):
            return []
        return [dim for dim, size in enumerate(value.shape) if axis_of(size, self.axes) == "time"]

    def time_dim_of(self, node: object) -> int | None:
        """Return the only time dimension of a node; None if it has none or several."""
        dims = self.time_dims(node)
        return dims[0] if len(dims) == 1 else None


Rule = Callable[[TaintMap, Node], bool]


def _pointwise(taints: TaintMap, node: Node) -> bool:
    """Broadcasting aligns dimensions from the right: time must align with time."""
    positions = {rank(s) - dim for s in node.all_input_nodes for dim in taints.time_dims(s)}
    return len(positions) <= 1


def _feature_wise(taints: TaintMap, node: Node) -> bool:
    """linear(x, weight, bias): mixes the last dimension only."""
    x, *others = node.all_input_nodes
    time = taints.time_dim_of(x)
    return time is not None and time != rank(x) - 1 and not any(taints.time_dims(other) for other in others)


def _matmul(taints: TaintMap, node: Node) -> bool:
    """matmul(a, b) with time among the rows of a, not in what is summed over."""
    a, b = (node.all_input_nodes * 2)[:2]  # both may be the same
    return taints.time_dim_of(a) not in (None, rank(a) - 1) and not taints.time_dims(b) and taints.of[b] == INDEPENDENT


def _over_other_dims(taints: TaintMap, node: Node) -> bool:
    """A reduction, softmax, split, ... along dimensions that are not time."""
    dims, time = dims_argument(node), taints.time_dim_of(node.all_input_nodes[0])
    return dims is not None and time is not None and time not in dims


def _layer_norm(taints: TaintMap, node: Node) -> bool:
    x = node.all_input_nodes[0]
    time = taints.time_dim_of(x)
    return time is not None and time < rank(x) - len(argument(node, "normalized_shape"))


def _batch_norm(taints: TaintMap, node: Node) -> bool:
    """In eval mode a fixed affine map per channel (dimension 1)."""
    x = node.all_input_nodes[0]
    return True not in node.args[5:6] and taints.time_dim_of(x) not in (None, 1)


def _cat(taints: TaintMap, node: Node) -> bool:
    tensors, dim = argument(node, "tensors"), int(argument(node, "dim"))
    places = {d for t in tensors for d in taints.time_dims(t)}
    return len(places) <= 1 and dim % rank(node) not in places


def _moves_dims(taints: TaintMap, node: Node) -> bool:
    """transpose, permute, expand, ...: each timestep stays one timestep."""
    return len(taints.time_dims(node)) == 1


def _view(taints: TaintMap, node: Node) -> bool:
    """A reshape is timestep-local if it keeps the products of the sizes before and after time."""
    source = node.all_input_nodes[0]
    before, after = taints.time_dim_of(source), taints.time_dim_of(node)
    if before is None or after is None:
        return False
    old, new = source.meta["val"].shape, node.meta["val"].shape
    return bool(product(old[:before]) == product(new[:after]))


def _slice(taints: TaintMap, node: Node) -> bool:
    """A slice of other dimensions, or all of time."""
    return taints.time_dims(node) == taints.time_dims(node.all_input_nodes[0])


def _select(taints: TaintMap, node: Node) -> bool:
    """One index of another dimension, or the first timestep, which every request has."""
    x = node.all_input_nodes[0]
    dim, index = int(argument(node, "dim")) % rank(x), argument(node, "index")
    return dim != taints.time_dim_of(x) or bool(index == 0)


def _gather(taints: TaintMap, node: Node) -> bool:
    """Along time, each row's own last timestep (lengths - 1). Along other dimensions, each timestep from itself."""
    x, dim, index = (argument(node, name) for name in ("self", "dim", "index"))
    if (time := taints.time_dim_of(x)) is None:
        return False
    if int(dim) % rank(x) == time:
        return is_last_step(taints, index)
    return taints.time_dims(index) == taints.time_dims(x)


def is_last_step(taints: TaintMap, node: object) -> bool:
    """Whether an index is lengths - 1 of each row, broadcast over other dimensions."""
    node = _of_rows(taints, node)
    if node is not None and operator_name(node) == "aten.where":  # a negative position is counted from the end
        condition, position = argument(node, "condition"), argument(node, "other")
        is_of_position = operator_name(condition) == "aten.lt" and condition.args == (position, 0)
        node = _of_rows(taints, position) if is_of_position else None
    if node is None or operator_name(node) not in ("aten.sub", "aten.add") or argument(node, "alpha", 1) != 1:
        return False
    subtracts_one = (operator_name(node), argument(node, "other")) in (("aten.sub", 1), ("aten.add", -1))
    return subtracts_one and _of_rows(taints, node.args[0]) is taints.lengths


def _of_rows(taints: TaintMap, node: object) -> Node | None:
    """Return the call that computes a tensor's values, one for each row; None where they are no values of the rows."""
    while isinstance(node, Node):
        shape = node.meta["val"].shape
        if not shape or axis_of(shape[0], taints.axes) != "batch":
            return None
        if operator_name(node) not in VALUE_PRESERVING:
            return node
        node = node.all_input_nodes[0]
    return None


def _recurrence(taints: TaintMap, node: Node) -> bool:
    """A masked recurrence is exact for any padding of x. Its initial states must be independent of padding."""
    x, lengths = argument(node, "x"), argument(node, "lengths")
    while isinstance(lengths, Node) and operator_name(lengths) in CONVERSIONS:
        lengths = lengths.all_input_nodes[0]
    if any(taints.of[n] != INDEPENDENT for n in pytree.tree_leaves(node.args[2:]) if isinstance(n, Node)):
        return False
    if taints.time_dim_of(x) is None:
        return taints.of[x] == INDEPENDENT
    return taints.time_dim_of(x) == 1 and lengths is taints.lengths


_SHAPE_RULES = rule_table(
    (_view, "view reshape _unsafe_view flatten unflatten"),
    (_moves_dims, "transpose permute t movedim unsqueeze squeeze expand expand_as contiguous alias detach"),
    (_moves_dims, "lift_fresh_copy repeat"),
    (_over_other_dims, "split chunk unbind split_with_sizes"),
)
_FACTORY: Rule = lambda taints, node: True  # noqa: E731
FILL_FACTORIES = rule_table((_FACTORY, "full full_like new_full"))
FACTORIES = rule_table((_FACTORY, "arange zeros ones empty zeros_like ones_like new_zeros new_ones"))
_TAKES_SIZES = {*_SHAPE_RULES, *FACTORIES}
CONVERSIONS = aten_names("to _to_copy cpu clone detach alias contiguous")
VALUE_PRESERVING = CONVERSIONS | aten_names("expand expand_as repeat view reshape unsqueeze")
_RULES: dict[str, Rule] = {
    **_SHAPE_RULES,
    **FACTORIES,
    **FILL_FACTORIES,
    **rule_table(
        (_slice, "slice narrow"),
        (_select, "select"),
        (_pointwise, "to _to_copy clone dropout feature_dropout type_as where __and__ __or__ hardswish"),
        (_feature_wise, "linear"),
        (_matmul, "matmul"),
        (lambda taints, node: taints.of[node.all_input_nodes[0]] == INDEPENDENT, "embedding"),
        (lambda taints, node: class_count(node) is not None, "one_hot"),
        (_layer_norm, "layer_norm rms_norm"),
        (_batch_norm, "batch_norm"),
        (_over_other_dims, "softmax log_softmax sum mean amax amin argmax max min logsumexp norm linalg_vector_norm"),
        (_over_other_dims, "var std topk glu"),
        (lambda taints, node: taints.time_dim_of(node.all_input_nodes[0]) is not None, "cumsum"),
        (_cat, "cat"),
        (lambda taints, node: len({d for t in argument(node, "tensors") for d in taints.time_dims(t)}) <= 1, "stack"),
        (_gather, "gather"),
    ),
    "neuron_lstm.lstm": _recurrence,
    "neuron_lstm.rnn": _recurrence,
}


def is_timestep_local(taints: TaintMap, node: Node, name: str) -> bool:
    """Whether this call keeps timesteps apart by its operator's rule; False without a rule."""
    rule = _RULES.get(name)
    if rule is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
        rule = _pointwise
    return rule is not None and rule(taints, node)


def transfer(taints: TaintMap, node: Node) -> Taint:
    """Compute the taint of a node from the taints of all nodes before it."""
    if node.op == "placeholder":
        return PER_TIMESTEP if taints.time_dims(node) else INDEPENDENT
    if node.op == "call_function":
        return _transfer_call(taints, node)
    return INDEPENDENT


def _transfer_call(taints: TaintMap, node: Node) -> Taint:
    sources = [taints.of[source] for source in node.all_input_nodes]
    if (tainted := next((taint for taint in sources if isinstance(taint, Tainted)), None)) is not None:
        return tainted
    name = operator_name(node)
    if name in ("getitem", "aten.sym_size.int") or is_number(node):
        return _transfer_size_or_element(taints, node, name)
    # a size that is computed from time but not equal to it, as `x[:, 1:]` has
    derived = [size for size in getattr(node.meta.get("val"), "shape", ()) if axis_of(size, taints.axes) is None]
    if _uses_time_as_value(taints, node, name) or any(map(taints.has_time, derived)):
        return Tainted(name, node_line(node))
    if PER_TIMESTEP not in sources and name not in FACTORIES and name not in FILL_FACTORIES:
        return PER_TIMESTEP if taints.time_dims(node) else INDEPENDENT
    if is_timestep_local(taints, node, name):
        is_tuple = isinstance(node.meta.get("val"), (list, tuple))
        return PER_TIMESTEP if taints.time_dims(node) or (PER_TIMESTEP in sources and is_tuple) else INDEPENDENT
    return Tainted(name, node_line(node))


def is_number(node: Node) -> bool:
    """Whether a node is a size or a condition on sizes, not a tensor."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, int))


def _transfer_size_or_element(taints: TaintMap, node: Node, name: str) -> Taint:
    """Treat a size as independent (its uses are checked elsewhere). Derive an element's taint from its tuple."""
    if name != "getitem" or not isinstance(node.meta.get("val"), torch.Tensor):
        return INDEPENDENT
    source = node.args[0]
    assert isinstance(source, Node)
    if is_recurrent(source.target):
        has_time = node.args[1] == 0 and taints.of[source.all_input_nodes[0]] == PER_TIMESTEP
        return PER_TIMESTEP if has_time else INDEPENDENT
    return taints.of[source] if taints.time_dims(node) else INDEPENDENT


def _uses_time_as_value(taints: TaintMap, node: Node, name: str) -> bool:
    """Whether a value depends on the number of padded timesteps, as in `sum / T`. A shape may contain that number."""
    if name in _TAKES_SIZES:
        return False
    if name in FILL_FACTORIES:  # the argument after the sizes is a value
        return any(taints.is_time_expression(argument) for argument in [*node.args[1:], *node.kwargs.values()])
    if name in ("aten.slice", "aten.narrow"):
        ends_with_time = bool(taints.time_dims(node)) and not any(taints.is_time_expression(a) for a in node.args[2:3])
        return not ends_with_time and any(taints.is_time_expression(a) for a in node.args)
    return any(taints.is_time_expression(source) for source in node.all_input_nodes)


_ZEROS = {"aten.zeros", "aten.new_zeros", "aten.zeros_like"}


def constant_value(node: Node) -> float | None:
    """Return the number that fills a tensor, if the graph shows it."""
    while operator_name(node) in {*VALUE_PRESERVING, "aten.slice", "aten.select"}:
        node = node.all_input_nodes[0]
    if operator_name(node) in _ZEROS:
        return 0.0
    filled = argument(node, "fill_value") if operator_name(node) in FILL_FACTORIES else None
    return float(filled) if isinstance(filled, (int, float)) else None
