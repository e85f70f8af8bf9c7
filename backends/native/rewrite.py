"""An exported program with the kernel in the place of its recurrent operators, to be called with flat inputs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..interface import Weights
from .layers import NativeLinear, NativeRecurrence, NativeSequenceLinear
from .library import LayerStack, LinearLayer, ThreadPool, pack_recurrence

_LSTM, _RNN = torch.ops.neuron_lstm.lstm.default, torch.ops.neuron_lstm.rnn.default
_LINEAR, _DROPOUT = torch.ops.aten.linear.default, torch.ops.aten.dropout.default
_CHECK = torch.ops.aten._assert_tensor_metadata.default

_LARGE = 1 << 15
"""Weights of a linear layer that the kernel multiplies faster than torch on one thread, however few the rows."""


def has_supported_ops(program: torch.export.ExportedProgram) -> bool:
    """Whether there is anything in it that `replace_recurrent_ops` may hand to the kernel."""
    calls: Any = [node for node in program.graph.nodes if node.op == "call_function"]
    return any(
        call.target in (_LSTM, _RNN) or (call.target is _LINEAR and call.args[1].meta["val"].numel() >= _LARGE)
        for call in calls
    )


def replace_recurrent_ops(
    program: torch.export.ExportedProgram, weights: Weights, pool: ThreadPool | None
) -> torch.fx.GraphModule:
    """A module of the program's graph: flat inputs to a tuple of flat outputs, its weights among its attributes.

    `pool` is None for a program that gains nothing.

    What the kernel does not know (another dtype, projections, weights that the program computes) stays torch's.
    """
    module = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    module.graph.output(module.graph.graph_copy(program.graph, {}))
    for name, branch in program.graph_module.named_children():  # of a condition
        module.add_submodule(name, branch)
    given = _keep_weights(module, program, weights)
    _leave_out(module.graph)
    if pool is not None:
        _hand_over(module, given, pool)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _hand_over(module: torch.fx.GraphModule, given: Mapping[torch.fx.Node, torch.Tensor], pool: ThreadPool) -> None:
    """Put the kernel in the place of every call that it knows."""
    for node in [node for node in module.graph.nodes if node.op == "call_function"]:
        if node.target in (_LSTM, _RNN):
            _replace_recurrence(module, node, given, pool)
        elif node.target is _LINEAR:
            _replace_linear(module, node, given, pool)


def _leave_out(graph: torch.fx.Graph) -> None:
    """Operators that do nothing here: checks of dtypes, which follow from the inputs', and dropout."""
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        if node.target is _CHECK:
            graph.erase_node(node)
        elif node.target is _DROPOUT and node.args[2:] == (False,):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _keep_weights(
    module: torch.fx.GraphModule, program: torch.export.ExportedProgram, weights: Weights
) -> dict[torch.fx.Node, torch.Tensor]:
    """Attributes in the place of the placeholders that stand for weights; the tensor of each."""
    signature = program.graph_signature
    names: Mapping[str, str] = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
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


def _replace_recurrence(
    module: torch.fx.GraphModule, node: torch.fx.Node, given: Mapping[torch.fx.Node, torch.Tensor], pool: ThreadPool
) -> None:
    """Put the kernel in the place of one call."""
    arguments: Any = node.args
    if node.target is _LSTM:
        x, lengths, h_0, c_0, weights, bias, layers, both, _ = arguments
        cell, states = "lstm", [h_0, c_0]
    else:
        x, lengths, h_0, weights, cell, bias, layers, both = arguments
        states = [h_0]
    if not _is_known(weights, bias, layers, both, given) or not _are_known(x, *states):
        return
    stack = _stack(cell, [given[weight] for weight in weights], layers, 2 if both else 1, pool)
    name = f"recurrence_{node.name}"
    module.add_submodule(name, NativeRecurrence(stack, time_major=_is_turned(node)))
    with module.graph.inserting_before(node):
        call = module.graph.call_module(name, (x, lengths, *states))
    node.replace_all_uses_with(call)
    module.graph.erase_node(node)


def _is_known(weights: Any, bias: Any, layers: Any, both: Any, given: Mapping[torch.fx.Node, torch.Tensor]) -> bool:
    """Whether the kernel takes these weights: all there, of its dtype, and no projection among them."""
    each = len(weights) // (layers * (2 if both else 1))
    return each == (4 if bias else 2) and all(
        weight in given and given[weight].dtype == torch.float32 for weight in weights
    )


def _are_known(*tensors: torch.fx.Node) -> bool:
    """Whether they are of the kernel's dtype."""
    return all(tensor.meta["val"].dtype == torch.float32 for tensor in tensors)


def _stack(cell: str, weights: Sequence[torch.Tensor], layers: int, directions: int, pool: ThreadPool) -> LayerStack:
    each = len(weights) // (layers * directions)
    lanes, at_once = pool.library.lanes, pool.library.interleaved_gates(cell)
    packed = [
        part
        for first in range(0, len(weights), each)
        for part in pack_recurrence(cell, weights[first : first + each], lanes, at_once)
    ]
    return LayerStack(pool, cell, layers, directions, weights[0].shape[1], weights[1].shape[1], packed)


def _is_turned(node: torch.fx.Node) -> bool:
    """Whether all that becomes of y[B, T, ...] is that time comes first: then it had better lie so."""
    answers = [user for user in node.users if user.args[1] == 0]
    return bool(answers) and all(
        user.target == torch.ops.aten.transpose.int and user.args[1:] == (0, 1)
        for answer in answers
        for user in answer.users
    )


def _replace_linear(
    module: torch.fx.GraphModule, node: torch.fx.Node, given: Mapping[torch.fx.Node, torch.Tensor], pool: ThreadPool
) -> None:
    """Put the kernel in the place of one call where it gains: after a recurrence, or with much to multiply."""
    arguments: Any = (*node.args, None)
    x, weight, bias = arguments[:3]
    tensors = [given.get(one) for one in (weight, bias) if one is not None]
    if not all(tensor is not None and tensor.dtype == torch.float32 for tensor in tensors):
        return
    steps = _steps_of(x, module)
    if steps is None and given[weight].numel() < _LARGE:
        return
    product = LinearLayer(pool, given[weight], None if bias is None else given[bias])
    name = f"linear_{node.name}"
    module.add_submodule(
        name, NativeLinear(product) if steps is None else NativeSequenceLinear(product, time_major=steps.time_major)
    )
    with module.graph.inserting_before(node):
        call = module.graph.call_module(name, (x,) if steps is None else (x, steps.lengths))
    node.replace_all_uses_with(call)
    module.graph.erase_node(node)


class _Steps(NamedTuple):
    """What a tensor is that holds a recurrence's answers of every timestep."""

    lengths: torch.fx.Node
    time_major: bool


def _steps_of(x: torch.fx.Node, module: torch.fx.GraphModule) -> _Steps | None:
    """Whether x is y of a recurrence with lengths."""
    turned = x.target is torch.ops.aten.transpose.int and x.args[1:] == (0, 1)
    y: Any = x.args[0] if turned else x
    if y.target is not operator.getitem or y.args[1] != 0 or y.args[0].op != "call_module":
        return None
    call: Any = y.args[0]
    if not isinstance(module.get_submodule(call.target), NativeRecurrence) or call.args[1] is None:
        return None
    return _Steps(call.args[1], turned)
