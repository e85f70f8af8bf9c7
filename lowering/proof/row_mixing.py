"""Row analysis: a proof on the graph that no row of a batch can reach the output of another row.

A value either has one dimension of rows, at which each row's part depends on that row alone, or it depends on no row.
Transfer rules exist for operators that keep rows apart; the result of any other counts as mixed. So the analysis may
reject a harmless model, but never accepts one whose rows mix: a mean over the batch, statistics of the batch, a value
that depends on the number of rows or on a row's position in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...backends.recurrent_operators import is_recurrent
from ...bucketing.shapes import TensorSpec
from ..errors import node_line
from ..exporter.program_tensors import functionalized
from ..outputs import output_nodes, symbolic_sizes, user_inputs
from ..ragged.sizes import expression, product
from .graph_calls import arange_length, base_name, class_count, dims_argument, operands, operator_name, rank, rule_table
from .timestep_rules import FACTORIES, FILL_FACTORIES, Tainted

Kind = Literal["plain", "outer", "inner"]
"""Whether the dimension has the rows alone, or is merged: with the rows outermost, or innermost."""


@dataclass(frozen=True)
class Rows:
    """The dimension of a tensor that has the rows."""

    dim: int
    kind: Kind = "plain"


State = Rows | Tainted | None
"""State of a value; None: it depends on no row."""


def find_row_mixing(exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec]) -> Tainted | None:
    """Return the first operator through which a row may reach another one's output; None without one.

    Writes in place are removed first: they would change values that were visited before.

    Raises:
        LoweringError: the model writes to a tensor of its own.
    """
    exported = functionalized(exported)
    axes = symbolic_sizes(exported, inputs)
    if not isinstance(axes.get("batch"), torch.SymInt):
        return None
    walk = _Walk(axes["batch"].node.expr, set(user_inputs(exported)))
    for node in exported.graph.nodes:
        if node.op != "output":
            walk.state[node] = walk.transfer(node)
    states = (walk.state[node] for node in output_nodes(exported))
    return next((state for state in states if isinstance(state, Tainted)), None)


class _Walk:
    """A traversal of the graph in order, with the state of each node visited."""

    def __init__(self, rows: Any, inputs: set[torch.fx.Node]) -> None:
        self.rows, self.inputs = rows, inputs
        self.state: dict[torch.fx.Node, State] = {}

    def has_rows(self, size: object) -> bool:
        """Whether a size or a number depends on the number of rows."""
        return isinstance(size, (torch.SymInt, torch.SymFloat)) and self.rows in size.node.expr.free_symbols

    def row_dims(self, node: torch.fx.Node) -> list[int]:
        """Return the dimensions of a node's tensor whose size depends on the number of rows."""
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        return [dim for dim, size in enumerate(shape) if self.has_rows(size)]

    def transfer(self, node: torch.fx.Node) -> State:
        """Compute the state of a node from the states of all nodes before it."""
        if node.op != "call_function":
            dims = self.row_dims(node)
            return Rows(dims[0]) if dims else None
        is_index = operator_name(node) == "aten.index"
        states = [self.state[s] for s in node.all_input_nodes if not (is_index and _is_every_row(self, s))]
        for state in states:
            if isinstance(state, Tainted):
                return state
        name, value = operator_name(node), node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
            return None  # its uses are checked where a tensor takes it
        return self.element(node) if name == "getitem" else self.call(node, name)

    def call(self, node: torch.fx.Node, name: str) -> State:
        """Compute the state of a call from the states of its arguments, none of which is mixed."""
        mixed = Tainted(name, node_line(node))
        if self.takes_rows_as_value(node, name):
            return mixed
        rows = [(source, state) for source in node.all_input_nodes if isinstance(state := self.state[source], Rows)]
        if not rows:
            return self.created(node, name, mixed)
        rule = _RULES.get(name) or (_pointwise if torch.Tag.pointwise in getattr(node.target, "tags", ()) else None)
        kept = None if rule is None else rule(self, node, rows)
        return mixed if kept is None else kept

    def element(self, node: torch.fx.Node) -> State:
        """Return the state of an element of a tuple: states of a recurrence have the rows second."""
        source = node.all_input_nodes[0]
        state = self.state[source]
        if isinstance(state, Rows) and is_recurrent(source.target) and node.args[1] != 0:
            return Rows(1)
        return state if isinstance(node.meta.get("val"), torch.Tensor) else None

    def created(self, node: torch.fx.Node, name: str, mixed: Tainted) -> State:
        """Return the state of a tensor that no row reaches; positions of rows in the batch count as mixing."""
        dims = self.row_dims(node)
        if not dims:
            return None
        alike = name in FILL_FACTORIES or (name in FACTORIES and name != "aten.arange")
        alike = alike or name in ("aten.expand", "aten.repeat", "aten.expand_as")
        return Rows(dims[0]) if alike and len(dims) == 1 else mixed

    def takes_rows_as_value(self, node: torch.fx.Node, name: str) -> bool:
        """Whether the number of rows is a value, as in `sum / B`, and not only part of a shape."""
        if name in _TAKES_SIZES:
            return False
        given = [*(node.args[1:] if name in FILL_FACTORIES else node.args), *node.kwargs.values()]
        return any(isinstance(a, torch.fx.Node) and self.has_rows(a.meta.get("val")) for a in given)


Sources = Sequence[tuple[torch.fx.Node, Rows]]
Rule = Callable[[_Walk, torch.fx.Node, Sources], "Rows | None"]


def _one_dim(walk: _Walk, node: torch.fx.Node, kind: Kind) -> Rows | None:
    dims = walk.row_dims(node)
    return Rows(dims[0], kind) if len(dims) == 1 else None


def _pointwise(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """Broadcasting aligns dimensions from the right: rows must align with rows."""
    places = {(rank(source) - state.dim, state.kind) for source, state in sources}
    if len(places) != 1:
        return None
    ((place, kind),) = places
    return Rows(rank(node) - place, kind)


def _only_first(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """Return the rows of the first argument, where no other argument has rows."""
    first = node.all_input_nodes[0]
    return sources[0][1] if len(sources) == 1 and sources[0][0] is first else None


def _feature_wise(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    state = _only_first(walk, node, sources)
    return state if state is not None and state.dim < rank(sources[0][0]) - 1 else None


def _channel_wise(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """Convolve, pool or normalise each item of the first dimension; statistics of the batch mix."""
    state = _only_first(walk, node, sources)
    training = base_name(str(node.target)) == "aten.batch_norm" and True in node.args[5:6]
    return state if state is not None and state.dim == 0 and not training else None


def _layer_norm(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    state = _only_first(walk, node, sources)
    normalized: Any = node.args[1]
    return state if state is not None and state.dim < rank(sources[0][0]) - len(normalized) else None


def _over_other_dims(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """A reduction, softmax, split, ... along dimensions that are not rows."""
    state, dims = _only_first(walk, node, sources), dims_argument(node)
    if state is None or dims is None or state.dim in dims:
        return None
    value = node.meta["val"]
    shape = (value[0] if isinstance(value, (tuple, list)) else value).shape
    removed = 0 if len(shape) == rank(sources[0][0]) else sum(dim < state.dim for dim in dims)
    return Rows(state.dim - removed, state.kind)


def _moves_dims(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    first = node.all_input_nodes[0]
    like = operator_name(node) == "aten.expand_as"  # the second argument is read for its shape
    return _one_dim(walk, node, sources[0][1].kind) if sources[0][0] is first and (like or len(sources) == 1) else None


def _matmul(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """Rows are a batch dimension of both factors, or rows of the first one's matrices."""
    a, b = node.all_input_nodes if len(node.all_input_nodes) == 2 else (operands(node)[0], operands(node)[0])
    first, second = walk.state[a], walk.state[b]
    if isinstance(first, Rows) and second is None and first.dim != rank(a) - 1:
        return _one_dim(walk, node, first.kind)
    if not isinstance(first, Rows) or not isinstance(second, Rows) or first.kind != second.kind:
        return None
    ranks = rank(a), rank(b)
    aligned = ranks[0] - first.dim == ranks[1] - second.dim > 2
    return _one_dim(walk, node, first.kind) if aligned else None


def _attention(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    places = {(rank(source) - state.dim, state.kind) for source, state in sources}
    return _one_dim(walk, node, sources[0][1].kind) if len(places) == 1 and min(p for p, _ in places) > 2 else None


def _view(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """A reshape keeps rows apart if what is before the rows, or what is after them, is kept."""
    (state,) = [state for _, state in sources[:1]]
    dims = walk.row_dims(node)
    if len(sources) != 1 or len(dims) != 1:
        return None
    old, new, dim = sources[0][0].meta["val"].shape, node.meta["val"].shape, dims[0]
    before = bool(product(old[: state.dim]) == product(new[:dim]))
    after = bool(product(old[state.dim + 1 :]) == product(new[dim + 1 :]))
    if before and after:
        return Rows(dim, state.kind)
    if before and state.kind != "inner":
        return Rows(dim, "plain" if expression(new[dim]) == walk.rows else "outer")
    if after and state.kind != "outer":
        return Rows(dim, "plain" if expression(new[dim]) == walk.rows else "inner")
    return None


def _joined(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """Concatenate along another dimension."""
    tensors: Any = node.args[0]
    dim = int(operands(node)[1]) if len(operands(node)) > 1 else 0
    states = {state for _, state in sources}
    if len(states) != 1 or len(sources) != len(set(tensors)):
        return None
    (state,) = states
    return state if dim % rank(node) != state.dim else None


def _stacked(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    states = {state for _, state in sources}
    tensors: Any = node.args[0]
    return _one_dim(walk, node, sources[0][1].kind) if len(states) == 1 and len(sources) == len(set(tensors)) else None


def _slice(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """A part of another dimension, or all rows."""
    state = _only_first(walk, node, sources)
    if state is None:
        return None
    source, dim = sources[0][0], int(operands(node)[1]) if len(operands(node)) > 1 else 0
    same = expression(source.meta["val"].shape[state.dim]) == expression(node.meta["val"].shape[state.dim])
    return state if dim % rank(source) != state.dim or (same and node.args[4:] in ((), (1,))) else None


def _select(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    state = _only_first(walk, node, sources)
    dim = int(operands(node)[1]) % rank(sources[0][0])
    return Rows(state.dim - (dim < state.dim), state.kind) if state is not None and dim != state.dim else None


def _written(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """A copy in which a part is replaced by a tensor with the same rows, or with none."""
    base, part, given = (*operands(node)[:3], 0)[:3]
    state, own = walk.state[base], walk.state[part]
    if not isinstance(state, Rows):
        return None
    dim = int(given) % rank(node)
    if dim == state.dim:  # all rows at once
        whole = expression(part.meta["val"].shape[dim]) == expression(base.meta["val"].shape[dim])
        return state if whole and own == state else None
    selected = operator_name(node) == "aten.select_scatter"
    place = Rows(state.dim - (selected and dim < state.dim), state.kind)
    return state if own in (None, place) else None


def _gather(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """Read along another dimension, each row by its own index."""
    x, dim, index = operands(node)[:3]
    first, second = walk.state[x], walk.state[index]
    same = isinstance(first, Rows) and first == second and first.kind == "plain"
    return first if same and isinstance(first, Rows) and int(dim) % rank(node) != first.dim else None


def _index(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """`x[arange(B), i]`, or positions of other dimensions by an index that depends on no row."""
    x, given = operands(node)[0], list(operands(node)[1])
    state = walk.state[x]
    if not isinstance(state, Rows):  # a table, read at positions of each row
        by_rows = any(_is_every_row(walk, i) for i in given)
        return None if by_rows or len(sources) != 1 else _one_dim(walk, node, "plain")
    if state.kind != "plain":
        return None
    own = given[state.dim] if state.dim < len(given) else None
    if own is None:
        free = all(i is None or walk.state[i] is None for i in given)
        return _one_dim(walk, node, "plain") if free else None
    return _one_dim(walk, node, "plain") if _is_every_row(walk, own) else None


def _is_every_row(walk: _Walk, node: object) -> bool:
    count = arange_length(node)
    return count is not None and bool(expression(count) == walk.rows)


def _recurrence(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """Rows of x[B, T, F] and lengths[B], and of states [L, B, H]."""
    x, lengths, *rest = operands(node)
    states = [n for n in rest if isinstance(n, torch.fx.Node)]
    first = walk.state[x]
    apart = not isinstance(lengths, torch.fx.Node) or walk.state[lengths] in (None, Rows(0))
    apart = apart and all(walk.state[n] in (None, Rows(1)) for n in states)
    return Rows(0) if apart and first in (None, Rows(0)) else None


def _embedding(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    weight, ids = operands(node)[:2]
    state = walk.state[ids]
    return state if walk.state[weight] is None and isinstance(state, Rows) else None


def _one_hot(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    state = walk.state[operands(node)[0]]
    return state if class_count(node) is not None and isinstance(state, Rows) else None


def _same_layout(walk: _Walk, node: torch.fx.Node, sources: Sources) -> Rows | None:
    """Create a tensor in the layout of another one."""
    return _one_dim(walk, node, sources[0][1].kind)


_SHAPES = rule_table(
    (_view, "view reshape _unsafe_view flatten unflatten"),
    (_moves_dims, "transpose permute t movedim unsqueeze squeeze expand expand_as contiguous alias detach detach_"),
    (_moves_dims, "lift_fresh_copy repeat clone unfold"),
    (_same_layout, "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty"),
)
_TAKES_SIZES = {*_SHAPES, *FACTORIES, "aten.sym_size"} - {*FILL_FACTORIES}
_RULES: dict[str, Rule] = {
    **_SHAPES,
    **rule_table(
        (_pointwise, "to _to_copy dropout feature_dropout type_as where __and__ __or__ hardswish hardswish_ fill copy"),
        (_feature_wise, "linear"),
        (_matmul, "matmul bmm mm"),
        (_attention, "scaled_dot_product_attention"),
        (_embedding, "embedding"),
        (_one_hot, "one_hot"),
        (_layer_norm, "layer_norm rms_norm"),
        (_channel_wise, "batch_norm conv1d conv2d max_pool1d max_pool2d avg_pool1d avg_pool2d group_norm"),
        (_channel_wise, "_native_batch_norm_legit_no_training"),
        (_channel_wise, "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d instance_norm"),
        (_over_other_dims, "softmax log_softmax sum mean amax amin argmax argmin max min logsumexp norm prod any all"),
        (_over_other_dims, "linalg_vector_norm var std topk glu sort argsort cumsum cumprod median flip"),
        (_over_other_dims, "split chunk unbind split_with_sizes"),
        (_joined, "cat"),
        (_stacked, "stack"),
        (_slice, "slice narrow"),
        (_select, "select"),
        (_written, "select_scatter slice_scatter"),
        (_gather, "gather"),
        (_index, "index"),
    ),
    "neuron_lstm.lstm": _recurrence,
    "neuron_lstm.rnn": _recurrence,
}
