"""Translation of a program of fixed sizes to a module of layers and functions for Vollo's compiler.

The compiler supports modules like `nn.Linear` and functions like `torch.relu`, where an exported program has operators
like `aten.linear`. Only the operators in the table below are translated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..exported_tensors import weight_names, weights_of
from ..interface import CompileError
from . import operators as _operators  # noqa: F401  registers them

_aten = torch.ops.aten


def to_vollo_module(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """Translate a program. The module has the same inputs and outputs; a single output is not in a tuple.

    `refusal` must be None for every operator.
    """
    return _Translation(program).module()


def refusal(node: torch.fx.Node) -> str | None:
    """Return why Vollo does not support a call of a program; None if it does."""
    entry = _TABLE.get(node.target)
    if entry is None:
        return "its compiler has no equivalent"
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    if not all(isinstance(value, torch.Tensor) and value.dtype is torch.float32 for value in values):
        return "it computes only in floating point"
    return entry.limit(node)


def does_arithmetic(program: torch.export.ExportedProgram) -> bool:
    """Whether a program does more than move data, so that the transfer to a device is worth its time."""
    return any(node.target in _TABLE and node.target not in _DATA_MOVEMENT for node in program.graph.nodes)


class _Translation:
    """A graph under construction. `_values` maps each node to a node of the new graph, or to a weight."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program
        self._root = nn.Module()
        self._graph = torch.fx.Graph()
        self._values: dict[torch.fx.Node, torch.fx.Node | torch.Tensor] = {}
        self._names: dict[Any, str] = {}

    def module(self) -> torch.fx.GraphModule:
        tensors, names = weights_of(self._program), weight_names(self._program)
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                name = names.get(node.name)
                self._values[node] = self._graph.placeholder(node.name) if name is None else tensors[name].detach()
            elif node.op == "call_function":
                self._values[node] = _TABLE[node.target].translate(self, node)
            elif node.op == "output":
                outputs = tuple(self.operand(one) for one in node.args[0])
                self._graph.output(outputs[0] if len(outputs) == 1 else outputs)
        return torch.fx.GraphModule(self._root, self._graph)

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> torch.fx.Node:
        """Add a call of a torch function."""
        return self._graph.call_function(function, arguments, named)

    def layer(self, make: Callable[[], nn.Module], x: torch.fx.Node, *weights: torch.Tensor | None) -> torch.fx.Node:
        """Add a call of a layer. Layers with the same weights are one, so the device holds them once."""
        key = (make.__qualname__, *map(id, weights)) if weights else object()
        if key not in self._names:
            self._names[key] = f"layer_{len(self._names)}"
            self._root.add_module(self._names[key], make().eval().requires_grad_(False))
        return self._graph.call_module(self._names[key], (x,))

    def operand(self, argument: Any) -> Any:
        """Return an argument as a node of the new graph; a weight becomes a constant, and a number stays."""
        value = self._values[argument] if isinstance(argument, torch.fx.Node) else argument
        if not isinstance(value, torch.Tensor):
            return value
        name = f"constant_{len(list(self._root.buffers(recurse=False)))}"
        self._root.register_buffer(name, value)
        return self._graph.get_attr(name)

    def weight(self, argument: Any) -> Any:
        """Return an argument that must be a weight, or None. Raises `CompileError`: it is computed."""
        value = None if argument is None else self._values[argument]
        if isinstance(value, torch.fx.Node):
            raise CompileError(f"Vollo supports only constant weights, and {argument} is computed")
        return value


Translate = Callable[[_Translation, torch.fx.Node], torch.fx.Node]
Limit = Callable[[torch.fx.Node], "str | None"]


@dataclass(frozen=True)
class OperatorEntry:
    """Translation of an operator, and a function that returns why a call of it is not supported."""

    translate: Translate
    limit: Limit = lambda node: None


def _function(function: Callable[..., Any], count: int | None = None, limit: Limit = lambda _: None) -> OperatorEntry:
    """Translate to a function of the first `count` arguments, or of all; the others keep their defaults."""
    return OperatorEntry(lambda new, node: new.call(function, *map(new.operand, node.args[:count])), limit)


def _unary(function: Callable[..., Any], limit: Limit = lambda _: None) -> OperatorEntry:
    return _function(function, 1, limit)


def _binary(function: Callable[..., Any]) -> OperatorEntry:
    no_factor = "it supports no factor alpha"
    return _function(function, 2, lambda node: None if node.kwargs.get("alpha", 1) == 1 else no_factor)


def _linear(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    x, weight, bias = (*node.args, None)[:3]
    w, b = new.weight(weight), new.weight(bias)

    def layer() -> nn.Module:
        made = nn.Linear(w.shape[1], w.shape[0], bias=b is not None, device="meta")
        return _with_weights(made, {"weight": w, "bias": b})

    return new.layer(layer, new.operand(x), w, b)


def _lstm(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    x, weights, bias, both = node.args
    tensors = [new.weight(one) for one in as_list(weights)]

    def layer() -> nn.Module:
        w_ih, w_hh = tensors[:2]
        options = {"bias": bool(bias), "bidirectional": bool(both)}
        made = nn.LSTM(w_ih.shape[1], w_hh.shape[1], batch_first=True, device="meta", **options)
        return _with_weights(made, dict(zip(made._flat_weights_names, tensors, strict=True)))

    return new.call(operator.getitem, new.layer(layer, new.operand(x), *tensors), 0)


def _layer_norm(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    x, shape, weight, bias, eps = (*node.args, *(None, None, 1e-5)[len(node.args) - 2 :])[:5]
    w, b = new.weight(weight), new.weight(bias)

    def layer() -> nn.Module:
        options = {"elementwise_affine": w is not None, "bias": b is not None}
        return _with_weights(nn.LayerNorm(as_list(shape), eps=float(str(eps)), **options), {"weight": w, "bias": b})

    return new.layer(layer, new.operand(x))


def _last_dimension(node: torch.fx.Node) -> str | None:
    return None if len(as_list(node.args[1])) == 1 else "it normalises only over the last dimension"


def _with_weights(layer: nn.Module, tensors: Mapping[str, torch.Tensor | None]) -> nn.Module:
    """Set the weights of a layer, sharing their memory."""
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(layer, name, nn.Parameter(tensor, requires_grad=False))
    return layer


def _constant_weights(*positions: int) -> Limit:
    """Require that the arguments at these positions are weights of the model."""

    def limit(node: torch.fx.Node) -> str | None:
        nodes = [one for at in positions if at < len(node.args) for one in as_list(node.args[at])]
        constant = all(not isinstance(one, torch.fx.Node) or one.op == "placeholder" for one in nodes)
        return None if constant else "it supports only constant weights, and these are computed"

    return limit


def as_list(argument: Any) -> list[Any]:
    """Return the elements of an argument that is a list or a tuple, else the argument alone."""
    return list(argument) if isinstance(argument, (list, tuple)) else [argument]


def _sum(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    x, dims, keep = (*node.args, False)[:3]
    return new.call(torch.sum, new.operand(x), dim=as_list(dims)[0], keepdim=bool(keep))


def _mean(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    (dim,) = as_list(node.args[1])
    return new.call(operator.truediv, _sum(new, node), float(node.all_input_nodes[0].meta["val"].shape[dim]))


def _single_dimension(node: torch.fx.Node) -> str | None:
    return None if len(node.args) > 1 and len(as_list(node.args[1])) == 1 else "it sums over one dimension only"


def _select(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    x, dim, index = node.args
    return new.call(operator.getitem, new.operand(x), _at(x, dim, index))


def _slice(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    arguments: Any = (*node.args, *(0, None, None)[len(node.args) - 1 :])
    x, dim, start, end = arguments[:4]
    start, end, _ = slice(start, end).indices(x.meta["val"].shape[dim])
    return new.call(operator.getitem, new.operand(x), _at(x, dim, slice(start, end)))


def _at(x: Any, dim: Any, index: Any) -> tuple[Any, ...]:
    """Return the Python index of one dimension."""
    count = x.meta["val"].dim()
    return tuple(index if position == dim % count else slice(None) for position in range(count))


def _reshape(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    return new.call(torch.reshape, new.operand(node.args[0]), tuple(int(size) for size in node.meta["val"].shape))


def _concatenation(function: Callable[..., Any]) -> OperatorEntry:
    def translate(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
        parts = [new.operand(one) for one in as_list(node.args[0])]
        return new.call(function, parts, dim=node.args[1] if len(node.args) > 1 else 0)

    return OperatorEntry(translate)


def _square(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    x = new.operand(node.args[0])
    return new.call(operator.mul, x, x)


def _gelu(new: _Translation, node: torch.fx.Node) -> torch.fx.Node:
    return new.layer(lambda: nn.GELU(str(node.kwargs.get("approximate", "none"))), new.operand(node.args[0]))


def _default_softplus(node: torch.fx.Node) -> str | None:
    return None if tuple(node.args[1:]) in {(), (1,), (1, 20), (1.0,), (1.0, 20.0)} else "its softplus has no options"


_DATA_MOVEMENT: dict[Any, OperatorEntry] = {
    **dict.fromkeys(
        (
            _aten.dropout.default, _aten.contiguous.default, _aten.clone.default, _aten.alias.default,
            _aten.detach.default, _aten.to.dtype, _aten.to.dtype_layout, _aten._to_copy.default,
        ),
        OperatorEntry(lambda new, node: new.operand(node.args[0])),
    ),
    **dict.fromkeys(
        (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default, _aten.flatten.using_ints),
        OperatorEntry(_reshape),
    ),
    _aten.transpose.int: _function(torch.transpose),
    _aten.t.default: _unary(torch.t),
    _aten.permute.default: _function(torch.permute),
    _aten.unsqueeze.default: _function(torch.unsqueeze),
    _aten.squeeze.dim: _function(torch.squeeze),
    _aten.select.int: OperatorEntry(_select),
    _aten.slice.Tensor: OperatorEntry(
        _slice, lambda node: "it supports only slices with step 1" if node.args[4:] not in ((), (1,)) else None),
    _aten.cat.default: _concatenation(torch.cat),
    _aten.stack.default: _concatenation(torch.stack),
}  # fmt: skip

_ELEMENTWISE = ("relu", "sigmoid", "tanh", "exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "neg")
"""Operators of one argument, which functions of torch have the names of."""
_TABLE: dict[Any, OperatorEntry] = {
    **_DATA_MOVEMENT,
    torch.ops.neuron_lstm.vollo_lstm.default: OperatorEntry(_lstm, _constant_weights(1)),
    _aten.linear.default: OperatorEntry(_linear, _constant_weights(1, 2)),
    _aten.layer_norm.default: OperatorEntry(_layer_norm, _last_dimension),
    **{getattr(_aten, name).default: _unary(getattr(torch, name)) for name in _ELEMENTWISE},
    _aten.silu.default: _unary(nn.functional.silu),
    _aten.softplus.default: _unary(nn.functional.softplus, _default_softplus),
    _aten.gelu.default: OperatorEntry(_gelu),
    _aten.softmax.int: OperatorEntry(
        lambda new, node: new.call(torch.softmax, new.operand(node.args[0]), dim=node.args[1])
    ),
    _aten.add.Tensor: _binary(operator.add),
    _aten.sub.Tensor: _binary(operator.sub),
    _aten.mul.Tensor: _binary(operator.mul),
    _aten.div.Tensor: _binary(operator.truediv),
    _aten.maximum.default: _binary(torch.maximum),
    _aten.minimum.default: _binary(torch.minimum),
    _aten.matmul.default: _binary(torch.matmul),
    _aten.pow.Tensor_Scalar: OperatorEntry(
        _square, lambda node: "it supports only the power of 2" if node.args[1] != 2 else None
    ),
    _aten.square.default: OperatorEntry(_square),
    _aten.sum.dim_IntList: OperatorEntry(_sum, _single_dimension),
    _aten.mean.dim: OperatorEntry(_mean, _single_dimension),
}
