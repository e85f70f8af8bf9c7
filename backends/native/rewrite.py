"""Rewriting of exported programs: calls of recurrent layers, linear layers and convolutions.

The recurrent library computes them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ..interface import Weights
from ..signature import weight_names
from .layers import NativeConvolution, NativeLinear, NativeRecurrence, NativeSequenceLinear, as_linear
from .library import LayerStack, LinearLayer, ThreadPool, pack_recurrence
from .simplify import simplify

_LSTM, _RNN = torch.ops.neuron_lstm.lstm.default, torch.ops.neuron_lstm.rnn.default
_LINEAR, _CONVOLUTION = torch.ops.aten.linear.default, torch.ops.aten.conv1d.default

_LARGE = 1 << 15
"""Weights from which on the library computes a linear layer faster than one thread of torch, for
any batch.
"""
_LARGE_WINDOW = 1 << 13
"""Weights from which on that holds for a convolution over timesteps."""


def has_supported_ops(program: ExportedProgram) -> bool:
    """Whether the program has operators that `replace_supported_ops` may replace."""
    return any(_may_be_replaced(node) for node in program.graph.nodes if node.op == "call_function")


def _may_be_replaced(call: Node) -> bool:
    arguments: Any = call.args
    if call.target is _LINEAR:
        return bool(arguments[1].meta["val"].numel() >= _LARGE)
    return call.target in (_LSTM, _RNN) or (call.target is _CONVOLUTION and _supports_convolution(call))


def replace_supported_ops(program: ExportedProgram, weights: Weights, pool: ThreadPool | None) -> GraphModule:
    """Build a module of the program's graph, from flat inputs to a tuple of flat outputs.

    `pool` is None for a program without supported operators. Unsupported calls (another dtype, projections, weights
    that the program computes) stay with torch.
    """
    module = GraphModule(torch.nn.Module(), Graph())
    module.graph.output(module.graph.graph_copy(program.graph, {}))
    for name, branch in program.graph_module.named_children():  # branches of torch.cond
        module.add_submodule(name, branch)
    given = _keep_weights(module, program, weights)
    simplify(module.graph)
    if pool is not None:
        _replace_operators(module, given, pool)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _replace_operators(module: GraphModule, given: Mapping[Node, torch.Tensor], pool: ThreadPool) -> None:
    """Replace every supported call."""
    for node in [node for node in module.graph.nodes if node.op == "call_function"]:
        if node.target in (_LSTM, _RNN):
            _replace_recurrence(module, node, given, pool)
        elif node.target is _LINEAR:
            _replace_linear(module, node, given, pool)
        elif node.target is _CONVOLUTION and _supports_convolution(node):
            _replace_convolution(module, node, given, pool)


def _keep_weights(module: GraphModule, program: ExportedProgram, weights: Weights) -> dict[Node, torch.Tensor]:
    """Replace the placeholders of weights by attributes. Returns the tensor of each attribute."""
    names = weight_names(program)
    given = {}
    for node in [node for node in module.graph.nodes if node.op == "placeholder" and node.name in names]:
        tensor = weights.get(names[node.name], program.constants.get(names[node.name]))
        assert isinstance(tensor, torch.Tensor)
        module.register_buffer(node.name, tensor.detach(), persistent=False)
        with module.graph.inserting_before(node):
            attribute = module.graph.get_attr(node.name)
        attribute.meta = dict(node.meta)
        node.replace_all_uses_with(attribute)
        module.graph.erase_node(node)
        given[attribute] = tensor.detach()
    return given


def _replace_recurrence(module: GraphModule, node: Node, given: Mapping[Node, torch.Tensor], pool: ThreadPool) -> None:
    """Replace one call if it is supported."""
    arguments: Any = node.args
    if node.target is _LSTM:
        x, lengths, h_0, c_0, weights, bias, layers, both, _ = arguments
        cell, states = "lstm", [h_0, c_0]
    else:
        x, lengths, h_0, weights, cell, bias, layers, both = arguments
        states = [h_0]
    if not _supports_weights(weights, bias, layers, both, given) or not _are_float32(x, *states):
        return
    stack = _stack(cell, [given[weight] for weight in weights], layers, 2 if both else 1, pool)
    layer = NativeRecurrence(stack, time_major=_is_time_major(node))
    _replace_call(module, node, f"recurrence_{node.name}", layer, (x, lengths, *states))


def _supports_weights(weights: Any, bias: Any, layers: Any, both: Any, given: Mapping[Node, torch.Tensor]) -> bool:
    """Whether the weights are constants of float32 without a projection."""
    each = len(weights) // (layers * (2 if both else 1))
    return each == (4 if bias else 2) and all(one in given and given[one].dtype == torch.float32 for one in weights)


def _are_float32(*tensors: Node) -> bool:
    return all(tensor.meta["val"].dtype == torch.float32 for tensor in tensors)


def _stack(cell: str, weights: Sequence[torch.Tensor], layers: int, directions: int, pool: ThreadPool) -> LayerStack:
    each = len(weights) // (layers * directions)
    lanes, interleave = pool.library.lanes, pool.library.interleaved_gates(cell)
    packed = [
        part
        for first in range(0, len(weights), each)
        for part in pack_recurrence(cell, weights[first : first + each], lanes, interleave)
    ]
    return LayerStack(pool, cell, layers, directions, weights[0].shape[1], weights[1].shape[1], packed)


def _is_time_major(node: Node) -> bool:
    """Whether y[B, T, ...] is only used transposed to time-major, so that it is better written so."""
    outputs = [user for user in node.users if user.args[1] == 0]
    return bool(outputs) and all(
        user.target == torch.ops.aten.transpose.int and user.args[1:] == (0, 1)
        for output in outputs
        for user in output.users
    )


def _replace_linear(module: GraphModule, node: Node, given: Mapping[Node, torch.Tensor], pool: ThreadPool) -> None:
    """Replace one call if that is faster: after a recurrence, or with a large weight."""
    arguments: Any = (*node.args, None)
    x, weight, bias = arguments[:3]
    tensors = [given.get(one) for one in (weight, bias) if one is not None]
    if not all(tensor is not None and tensor.dtype == torch.float32 for tensor in tensors):
        return
    steps = _timestep_outputs(x, module)
    if steps is None and given[weight].numel() < _LARGE:
        return
    linear = LinearLayer(pool, given[weight], None if bias is None else given[bias])
    if steps is None:
        _replace_call(module, node, f"linear_{node.name}", NativeLinear(linear), (x,))
    else:
        layer = NativeSequenceLinear(linear, time_major=steps.time_major)
        _replace_call(module, node, f"linear_{node.name}", layer, (x, steps.lengths))


class _Convolution(NamedTuple):
    """Arguments of a convolution over timesteps."""

    x: Node
    weight: Node
    bias: Node | None = None
    stride: Sequence[int] = (1,)
    padding: Sequence[int] = (0,)
    dilation: Sequence[int] = (1,)
    groups: int = 1


def _supports_convolution(node: Node) -> bool:
    """Whether a convolution is large, and reads neighbouring timesteps and all channels."""
    call = _Convolution(*node.args)  # type: ignore[arg-type]
    large = call.weight.meta["val"].numel() >= _LARGE_WINDOW
    return large and call.x.meta["val"].dim() == 3 and (call.dilation[0], call.groups) == (1, 1)


def _replace_convolution(module: GraphModule, node: Node, given: Mapping[Node, torch.Tensor], pool: ThreadPool) -> None:
    """Replace one call if its weights are constants of float32."""
    call = _Convolution(*node.args)  # type: ignore[arg-type]
    tensors = [given.get(one) for one in (call.weight, call.bias) if one is not None]
    if not all(tensor is not None and tensor.dtype == torch.float32 for tensor in tensors):
        return
    weight = given[call.weight]
    linear = LinearLayer(pool, as_linear(weight), None if call.bias is None else given[call.bias])
    layer = NativeConvolution(linear, weight.shape[2], call.stride[0], call.padding[0])
    _replace_call(module, node, f"convolution_{node.name}", layer, (call.x,))


def _replace_call(
    module: GraphModule, node: Node, name: str, layer: torch.nn.Module, arguments: tuple[Node | None, ...]
) -> None:
    """Call a layer in place of an operator."""
    module.add_submodule(name, layer)
    with module.graph.inserting_before(node):
        call = module.graph.call_module(name, arguments)
    node.replace_all_uses_with(call)
    module.graph.erase_node(node)


class _TimestepOutputs(NamedTuple):
    """Layout of a tensor that holds a recurrence's outputs at every timestep."""

    lengths: Node
    time_major: bool


def _timestep_outputs(x: Node, module: GraphModule) -> _TimestepOutputs | None:
    """The layout of x if it is y of a recurrence with lengths; else None."""
    time_major = x.target is torch.ops.aten.transpose.int and x.args[1:] == (0, 1)
    y: Any = x.args[0] if time_major else x
    if y.target is not operator.getitem or y.args[1] != 0 or y.args[0].op != "call_module":
        return None
    call: Any = y.args[0]
    if not isinstance(module.get_submodule(call.target), NativeRecurrence) or call.args[1] is None:
        return None
    return _TimestepOutputs(call.args[1], time_major)
