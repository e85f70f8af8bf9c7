"""Showing on the graph that what stands in the padding cannot reach an answer.

Every value of the graph is in one of three states. `FREE`: it depends on no padding at all. `STEPS`: it has one time
dimension, and what it holds at a timestep depends on no padded timestep (its padded part may hold anything). Else it is
`Reached`, with the operator that did it. Rules exist for the operators that keep timesteps apart; an operator without a
rule counts as reaching, so the proof can fail for a harmless model but not succeed for a harmful one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...bucketing.spec import Axis, TensorSpec
from .answers import axis_of, output_nodes, symbols, user_inputs
from .refusal import at, node_line


@dataclass(frozen=True)
class Reached:
    """Padding reaches a value, or cannot be shown not to."""

    operator: str
    line: str | None

    def __str__(self) -> str:
        return f"{self.operator}{at(self.line)}"


State = Literal["free", "steps"] | Reached
FREE: State = "free"
STEPS: State = "steps"


def prove(exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], takes_lengths: bool) -> Reached | None:
    """None if no answer depends on padding; otherwise the first operator through which one may."""
    axes = symbols(exported, inputs)
    if "time" not in axes:
        return None
    proof = _Proof(exported, axes, user_inputs(exported)[-1] if takes_lengths else None)
    for node in exported.graph.nodes:
        proof.visit(node)
    for node in output_nodes(exported):
        state = proof.states[node]
        if isinstance(state, Reached):
            return state
    return None


class _Proof:
    """The states of the nodes seen so far."""

    def __init__(
        self, exported: torch.export.ExportedProgram, axes: dict[Axis, Any], lengths: torch.fx.Node | None
    ) -> None:
        self.axes, self.lengths = axes, lengths
        self.states: dict[torch.fx.Node, State] = {}

    def visit(self, node: torch.fx.Node) -> None:
        if node.op == "placeholder":
            self.states[node] = STEPS if self.time_dims(node) else FREE
        elif node.op == "call_function":
            self.states[node] = self.state_of(node)
        elif node.op == "get_attr":
            self.states[node] = FREE

    def state_of(self, node: torch.fx.Node) -> State:
        sources = [self.states[source] for source in node.all_input_nodes]
        for state in sources:
            if isinstance(state, Reached):
                return state
        name = _name(node)
        if name in ("getitem", "aten.sym_size.int") or isinstance(
            node.meta.get("val"), (torch.SymInt, torch.SymBool, int)
        ):
            return self.of_number_or_element(node, name)
        rule = _RULES.get(name)
        if rule is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
            rule = _pointwise
        if self.uses_time_as_value(node, name) or self.has_odd_time(node):
            return Reached(name, node_line(node))
        if STEPS not in sources and name not in (*_FACTORIES, *_FILLED):
            return STEPS if self.time_dims(node) else FREE
        if rule is not None and rule(self, node):
            return STEPS if self.time_dims(node) or (STEPS in sources and self.is_tuple(node)) else FREE
        return Reached(name, node_line(node))

    def of_number_or_element(self, node: torch.fx.Node, name: str) -> State:
        """A size is free (what is made of it is judged where it is used); an element is as its tuple and shape say."""
        if name != "getitem" or not isinstance(node.meta.get("val"), torch.Tensor):
            return FREE
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        if _name(source).startswith("neuron_lstm."):
            return STEPS if node.args[1] == 0 and self.is_step_tensor(source.args[0]) else FREE
        return self.states[source] if self.time_dims(node) else FREE

    def uses_time_as_value(self, node: torch.fx.Node, name: str) -> bool:
        """Whether the *number* of padded timesteps goes into a value, as in `sum / T` (a shape may hold it)."""
        if name in _TAKES_SIZES:
            return False
        if name in _TAKES_SIZES_FIRST:
            return any(self.counts_time(argument) for argument in [*node.args[1:], *node.kwargs.values()])
        if name == "aten.slice":
            ends_with_time = bool(self.time_dims(node)) and not any(self.counts_time(a) for a in node.args[2:3])
            return not ends_with_time and any(self.counts_time(a) for a in node.args)
        return any(self.counts_time(source) for source in node.all_input_nodes)

    def counts_time(self, argument: object) -> bool:
        """Whether an argument is a number made of the number of padded timesteps."""
        value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
        return isinstance(value, (torch.SymInt, torch.SymFloat)) and self.has_time(value)

    def has_time(self, size: Any) -> bool:
        """Whether a size is an expression of the number of padded timesteps."""
        return not isinstance(size, int) and self.axes["time"].node.expr in size.node.expr.free_symbols

    def has_odd_time(self, node: torch.fx.Node) -> bool:
        """Whether a tensor has a dimension made of time that is not time, as `x[:, 1:]` has."""
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        return any(self.has_time(size) and axis_of(size, self.axes) is None for size in shape)

    def time_dims(self, node: object) -> list[int]:
        """Which dimensions of a node's tensor are time."""
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor):
            return []
        return [dim for dim, size in enumerate(value.shape) if axis_of(size, self.axes) == "time"]

    def is_tuple(self, node: torch.fx.Node) -> bool:
        return isinstance(node.meta.get("val"), (list, tuple))

    def is_step_tensor(self, node: object) -> bool:
        return isinstance(node, torch.fx.Node) and self.states.get(node) == STEPS

    def time_of(self, node: object) -> int | None:
        """The one time dimension of a node, or None where there is none or more than one."""
        dims = self.time_dims(node)
        return dims[0] if len(dims) == 1 else None


def _name(node: torch.fx.Node) -> str:
    if node.target is operator.getitem:
        return "getitem"
    target = str(node.target)
    return target if target.endswith((".int", ".Tensor")) and "sym_size" in target else _base(target)


def _base(target: str) -> str:
    """`aten.sum.dim_IntList` -> `aten.sum`."""
    parts = target.split(".")
    return ".".join(parts[:2]) if len(parts) >= 2 else target


Rule = Callable[[_Proof, torch.fx.Node], bool]


def _rank(node: torch.fx.Node) -> int:
    return len(node.meta["val"].shape)


def _pointwise(proof: _Proof, node: torch.fx.Node) -> bool:
    """Broadcasting aligns dimensions from the right: time must meet time."""
    places = {_rank(s) - dim for s in node.all_input_nodes for dim in proof.time_dims(s)}
    return len(places) <= 1


def _feature_wise(proof: _Proof, node: torch.fx.Node) -> bool:
    """linear(x, weight, bias): mixes the last dimension only."""
    x, *others = node.all_input_nodes
    time = proof.time_of(x)
    return time is not None and time != _rank(x) - 1 and not any(proof.time_dims(other) for other in others)


def _matmul(proof: _Proof, node: torch.fx.Node) -> bool:
    """matmul(a, b) with time among the rows of a, not in what is summed over."""
    a, b = node.all_input_nodes if len(node.all_input_nodes) == 2 else (node.args[0], node.args[0])
    return proof.time_of(a) not in (None, _rank(a) - 1) and not proof.time_dims(b) and proof.states[b] == FREE  # type: ignore[arg-type,index]


def _embedding(proof: _Proof, node: torch.fx.Node) -> bool:
    return proof.states[node.all_input_nodes[0]] == FREE


def _dims_argument(node: torch.fx.Node) -> list[int] | None:
    """The `dim` of a reduction or normalisation over dimensions, non-negative; None: all of them."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    names = [argument.name for argument in schema]
    for name in ("dim", "dims"):
        if name in names:
            position = names.index(name)
            given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
            if given is None or given == []:
                return None
            rank = _rank(node.all_input_nodes[0])
            return [int(d) % rank for d in (given if isinstance(given, (list, tuple)) else [given])]  # type: ignore[arg-type]
    return None


def _over_other_dims(proof: _Proof, node: torch.fx.Node) -> bool:
    """A reduction, softmax, split, ... along dimensions that are not time."""
    dims, time = _dims_argument(node), proof.time_of(node.all_input_nodes[0])
    return dims is not None and time is not None and time not in dims


def _cumulative(proof: _Proof, node: torch.fx.Node) -> bool:
    """A running sum along time looks back only."""
    return proof.time_of(node.all_input_nodes[0]) is not None


def _layer_norm(proof: _Proof, node: torch.fx.Node) -> bool:
    x = node.all_input_nodes[0]
    time = proof.time_of(x)
    return time is not None and time < _rank(x) - len(node.args[1])  # type: ignore[arg-type]


def _batch_norm(proof: _Proof, node: torch.fx.Node) -> bool:
    """In eval mode a fixed affine map per channel (dimension 1)."""
    x = node.all_input_nodes[0]
    return True not in node.args[5:6] and proof.time_of(x) not in (None, 1)


def _cat(proof: _Proof, node: torch.fx.Node) -> bool:
    tensors = node.args[0]
    dim = int(node.args[1]) if len(node.args) > 1 else 0  # type: ignore[arg-type]
    rank = _rank(node)
    places = {d for t in tensors for d in proof.time_dims(t)}  # type: ignore[union-attr]
    return len(places) <= 1 and dim % rank not in places


def _stack(proof: _Proof, node: torch.fx.Node) -> bool:
    return len({d for t in node.args[0] for d in proof.time_dims(t)}) <= 1  # type: ignore[union-attr]


def _moves_dims(proof: _Proof, node: torch.fx.Node) -> bool:
    """transpose, permute, expand, ...: every step stays one step."""
    return len(proof.time_dims(node)) == 1


def _view(proof: _Proof, node: torch.fx.Node) -> bool:
    """A reshape keeps steps apart if the same dimensions stand before time and after it."""
    source = node.all_input_nodes[0]
    before, after = proof.time_of(source), proof.time_of(node)
    if before is None or after is None:
        return False
    old, new = source.meta["val"].shape, node.meta["val"].shape
    return bool(_product(old[:before]) == _product(new[:after]))


def _product(sizes: Sequence[Any]) -> Any:
    """A product of sizes as an expression, so that comparing two sets no guard."""
    result: Any = 1
    for size in sizes:
        result = result * (size.node.expr if isinstance(size, torch.SymInt) else size)
    return result


def _slice(proof: _Proof, node: torch.fx.Node) -> bool:
    """A slice of other dimensions, or all of time."""
    return proof.time_dims(node) == proof.time_dims(node.all_input_nodes[0])


def _select(proof: _Proof, node: torch.fx.Node) -> bool:
    """One index of another dimension, or the first timestep, which every request has."""
    x = node.all_input_nodes[0]
    dim, index = int(node.args[1]) % _rank(x), node.args[2]  # type: ignore[arg-type]
    return dim != proof.time_of(x) or bool(index == 0)


def _gather(proof: _Proof, node: torch.fx.Node) -> bool:
    """Each row's own last timestep: gather along time at lengths - 1."""
    x, dim, index = node.args[:3]
    time = proof.time_of(x)
    return time is not None and int(dim) % _rank(x) == time and _is_last_step(proof, index)  # type: ignore[arg-type]


def _is_last_step(proof: _Proof, node: object) -> bool:
    if not isinstance(node, torch.fx.Node):
        return False
    while _base(str(node.target)) in _SPREADS:
        node = node.all_input_nodes[0]
    return _base(str(node.target)) == "aten.sub" and _is_lengths(proof, node.args[0]) and node.args[1:] == (1,)


def _is_lengths(proof: _Proof, node: object) -> bool:
    """The true lengths themselves, in some dtype: not a part of them, nor in another order."""
    while isinstance(node, torch.fx.Node) and _base(str(node.target)) in _CONVERTS:
        node = node.all_input_nodes[0]
    return node is proof.lengths


def _recurrence(proof: _Proof, node: torch.fx.Node) -> bool:
    """A masked recurrence over time is exact whatever stands in the padding of x; its states must be free of it."""
    x, lengths, *states_and_weights = node.args
    rest = [
        n
        for a in states_and_weights
        for n in (a if isinstance(a, (list, tuple)) else [a])
        if isinstance(n, torch.fx.Node)
    ]
    if any(proof.states[n] != FREE for n in rest):
        return False
    if proof.time_of(x) is None:
        return proof.states[x] == FREE  # type: ignore[index]
    return proof.time_of(x) == 1 and _is_lengths(proof, lengths)


def _arange(proof: _Proof, node: torch.fx.Node) -> bool:
    """0, 1, 2, ...: what stands at a timestep does not depend on how many there are."""
    numbers = [a for a in node.args if a not in (0, 1)]
    return len(numbers) <= 1


def _factory(proof: _Proof, node: torch.fx.Node) -> bool:
    return True


def _table(*groups: tuple[Rule, str]) -> dict[str, Rule]:
    return {f"aten.{name}": rule for rule, names in groups for name in names.split()}


_SHAPE_RULES = _table(
    (_view, "view reshape _unsafe_view flatten unflatten"),
    (_moves_dims, "transpose permute t movedim unsqueeze squeeze expand expand_as contiguous alias detach detach_"),
    (_moves_dims, "lift_fresh_copy"),
    (_over_other_dims, "split chunk unbind split_with_sizes"),
)
_FILLED = _table((_factory, "full full_like new_full"))
_FACTORIES = _table((_arange, "arange"), (_factory, "zeros ones empty zeros_like ones_like new_zeros new_ones"))
_TAKES_SIZES = {*_SHAPE_RULES, *_FACTORIES}
_TAKES_SIZES_FIRST = {*_FILLED}  # what comes after the sizes is a value
_CONVERTS = {f"aten.{name}" for name in ("to", "_to_copy", "cpu", "clone", "detach", "alias", "contiguous")}
_SPREADS = {*_CONVERTS, "aten.expand", "aten.view", "aten.reshape", "aten.unsqueeze"}
_RULES: dict[str, Rule] = {
    **_SHAPE_RULES,
    **_FACTORIES,
    **_FILLED,
    **_table(
        (_slice, "slice"),
        (_select, "select"),
        (_pointwise, "to _to_copy clone dropout feature_dropout type_as where"),
        (_feature_wise, "linear"),
        (_matmul, "matmul"),
        (_embedding, "embedding"),
        (_layer_norm, "layer_norm rms_norm"),
        (_batch_norm, "batch_norm"),
        (_over_other_dims, "softmax log_softmax sum mean amax amin argmax max min logsumexp norm linalg_vector_norm"),
        (_over_other_dims, "var std topk"),
        (_cumulative, "cumsum"),
        (_cat, "cat"),
        (_stack, "stack"),
        (_gather, "gather"),
    ),
    "neuron_lstm.lstm": _recurrence,
    "neuron_lstm.rnn": _recurrence,
}
