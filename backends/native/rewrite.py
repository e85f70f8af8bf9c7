"""Rewriting of exported programs: calls of recurrent layers, linear layers and convolutions.

The recurrent library computes them. The calls are chosen when a program is packaged, and written into its source.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from .. import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators
from ..exported_tensors import weight_names
from ..program_source.write import call_layer, graph_source
from .layers import convolution, linear, recurrence, sequence_linear

_LSTM, _RNN = torch.ops.neuron_lstm.lstm.default, torch.ops.neuron_lstm.rnn.default
_aten = torch.ops.aten
_ZEROS = (_aten.zeros.default, _aten.new_zeros.default)
_VIEWS = (_aten.unsqueeze.default, _aten.expand.default, _aten.reshape.default)
"""Operators that give every row of a batch the states of a loop over cells."""

LAYERS = {layer: layer.__name__ for layer in (convolution, linear, recurrence, sequence_linear)}
"""Functions that make layers when a program is loaded, and their names in its source."""

_LARGE = 1 << 15
"""Weights from which on the library computes a linear layer faster than one thread of torch. For any batch."""
_LARGE_WINDOW = 1 << 13
"""Weights from which on that holds for a convolution over timesteps."""


class NativeSource(NamedTuple):
    """The source of a program, and the functions that make its layers: once for each layer, in order."""

    text: str
    layers: tuple[str, ...]


def native_source(program: ExportedProgram) -> NativeSource:
    """Return the source of a program that calls layers of the recurrent library.

    Unsupported calls (another dtype, weights that the program computes) stay with torch.

    Raises `CompileError`: source cannot express an operator.
    """
    module = GraphModule(torch.nn.Module(), Graph())
    module.graph.output(module.graph.graph_copy(program.graph, {}))
    for name, branch in program.graph_module.named_children():  # of control flow
        module.add_submodule(name, branch)
    names = weight_names(program)
    weights = {node: names[node.name] for node in module.graph.find_nodes(op="placeholder") if node.name in names}
    simplify(module.graph)
    module.graph.eliminate_dead_code()  # unread outputs then have no users
    for node in list(module.graph.nodes):
        if node.target in (_LSTM, _RNN):
            _replace_recurrence(node, weights)
        elif node.target is _aten.linear.default:
            _replace_linear(node, weights)
        elif node.target is _aten.conv1d.default:
            _replace_convolution(node, weights)
    module.graph.eliminate_dead_code()
    layers = tuple(LAYERS[node.target] for node in module.graph.nodes if node.target in LAYERS)
    return NativeSource(graph_source(module, weights, LAYERS), layers)


def _replace_recurrence(node: Node, weights: Mapping[Node, str]) -> None:
    arguments: Any = node.args
    if node.target is _LSTM:
        x, lengths, h_0, c_0, own, _, layers, both, _ = arguments
        cell, states = "lstm", [h_0, c_0]
    else:
        x, lengths, h_0, own, cell, _, layers, both = arguments
        states = [h_0]
    if not _are_constants(own, weights) or not _are_float32(x, *states):
        return
    given = [None if _are_zeros(state) else state for state in states]
    options = [cell, own, layers, 2 if both else 1, _is_time_major(node), any(user.args[1] == 0 for user in node.users)]
    if _is_embedding(x, weights):
        table, x = x.args[:2]
        options.append(table)
    _replace_call(node, recurrence, tuple(options), (x, lengths, *given))


def _are_zeros(state: Node) -> bool:
    """Whether a state is zeros that only layers read: anything else might write them in place."""
    source: Any = state
    while source.target in _VIEWS:
        source = source.args[0]
    is_zero = source.target in _ZEROS or (source.target is _aten.full.default and source.args[1] == 0)
    return is_zero and _is_read_by_layers(source)


def _is_read_by_layers(tensor: Node) -> bool:
    return all(
        user.target in (_LSTM, _RNN, call_layer) or (user.target in _VIEWS and _is_read_by_layers(user))
        for user in tensor.users
    )


def _is_embedding(x: Node, weights: Mapping[Node, str]) -> bool:
    """Whether x is an embedding of ids [B, T] that nothing else reads."""
    if x.target is not _aten.embedding.default or len(x.users) != 1:
        return False
    table, ids = x.args[:2]
    return _are_constants((table,), weights) and isinstance(ids, Node) and ids.meta["val"].dim() == 2


def _are_constants(tensors: Sequence[Any], weights: Mapping[Node, str]) -> bool:
    """Whether all of them are weights of float32; None stands for no bias."""
    return all(tensor is None or (tensor in weights and _are_float32(tensor)) for tensor in tensors)


def _are_float32(*tensors: Node) -> bool:
    return all(tensor.meta["val"].dtype == torch.float32 for tensor in tensors)


def _is_time_major(node: Node) -> bool:
    """Whether y[B, T, ...] is only used transposed to time-major, so that it is better written so."""
    outputs = [user for user in node.users if user.args[1] == 0]
    return bool(outputs) and all(
        user.target == _aten.transpose.int and user.args[1:] == (0, 1) for output in outputs for user in output.users
    )


def _replace_linear(node: Node, weights: Mapping[Node, str]) -> None:
    """Replace one call if that is faster: after a recurrence, or with a large weight."""
    arguments: Any = (*node.args, None)
    x, weight, bias = arguments[:3]
    if not _are_constants((weight, bias), weights):
        return
    if (found := _timestep_outputs(x)) is not None:
        lengths, time_major = found
        _replace_call(node, sequence_linear, (weight, bias, time_major), (x, lengths))
    elif weight.meta["val"].numel() >= _LARGE:
        _replace_call(node, linear, (weight, bias), (x,))


class _Convolution(NamedTuple):
    x: Node
    weight: Node
    bias: Node | None = None
    stride: Sequence[int] = (1,)
    padding: Sequence[int] = (0,)
    dilation: Sequence[int] = (1,)
    groups: int = 1


def _replace_convolution(node: Node, weights: Mapping[Node, str]) -> None:
    """Replace one call if its weights are large, and it reads neighbouring timesteps and all channels."""
    arguments: Any = node.args
    call = _Convolution(*arguments)
    is_large = call.weight.meta["val"].numel() >= _LARGE_WINDOW
    is_supported = call.x.meta["val"].dim() == 3 and (call.dilation[0], call.groups) == (1, 1)
    if is_large and is_supported and _are_constants((call.weight, call.bias), weights):
        _replace_call(node, convolution, (call.weight, call.bias, call.stride[0], call.padding[0]), (call.x,))


def _replace_call(node: Node, make: Any, options: tuple[Any, ...], inputs: tuple[Node | None, ...]) -> None:
    """Call a layer in place of an operator. `options` are the arguments of the function that makes the layer."""
    with node.graph.inserting_before(node):
        layer = node.graph.create_node("call_function", make, options, name=f"{node.name}_layer")
        call = node.graph.create_node("call_function", call_layer, (layer, *inputs), name=node.name)
    call.meta["val"] = node.meta["val"]  # the next recurrence may read it
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)


def _timestep_outputs(x: Node) -> tuple[Node, bool] | None:
    """The lengths of x, and whether it is time-major, if it is y of a recurrence with lengths; else None."""
    time_major = x.target is _aten.transpose.int and x.args[1:] == (0, 1)
    y: Any = x.args[0] if time_major else x
    if y.target is not operator.getitem or y.args[1] != 0 or y.args[0].target is not call_layer:
        return None
    layer, _, *others = y.args[0].args
    if layer.target is not recurrence or others[0] is None:
        return None
    return others[0], time_major


def simplify(graph: Graph) -> None:
    """Remove calls without an effect, and changes of dimensions that are undone after a linear layer."""
    for node in _calls(graph, _aten._assert_tensor_metadata.default):  # the signature checks dtypes already
        graph.erase_node(node)
    for node in _calls(graph, _aten.to.dtype):
        converted, *others = node.args
        if isinstance(converted, Node) and [converted.meta["val"].dtype] == others:
            _replace(node, converted)
    for node in _calls(graph, _aten.dropout.default):
        if node.args[2:] == (False,):
            _replace(node, node.args[0])
    for node in _calls(graph, _aten.linear.default):
        _move_behind(graph, node)
    for node in _calls(graph, _aten.permute.default):
        permuted: Any = node.args[0]
        if permuted.target is _aten.permute.default and _order(permuted) == _inverse(_order(node)):
            _replace(node, permuted.args[0])
    for node in _calls(graph, _aten.squeeze.dim):
        added: Any = node.args[0]
        if added.target is _aten.unsqueeze.default and added.args[1] == node.args[1]:
            _replace(node, added.args[0])


def _calls(graph: Graph, target: Any) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function" and node.target is target]


def _replace(node: Node, other: Any) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def _move_behind(graph: Graph, node: Node) -> None:
    """Turn linear(view(x)) into view(linear(x)), for views that leave the last dimension where it is."""
    viewed, *weights = node.args
    if not isinstance(viewed, Node) or not _leaves_last_dimension(viewed):
        return
    x, where = viewed.args
    value = node.meta["val"]
    with graph.inserting_before(node):
        linear = graph.call_function(_aten.linear.default, (x, *weights))
        is_permuted = viewed.target is _aten.permute.default
        value = value.permute(_inverse(_order(viewed))) if is_permuted else value.squeeze(where)
        linear.meta = {**node.meta, "val": value}
        result = graph.call_function(viewed.target, (linear, where))  # type: ignore[arg-type]  # an operator
        result.meta = dict(node.meta)
    _replace(node, result)
    _move_behind(graph, linear)


def _leaves_last_dimension(viewed: Node) -> bool:
    last = viewed.meta["val"].dim() - 1 if "val" in viewed.meta else 0
    if viewed.target is _aten.permute.default:
        return _order(viewed)[last] == last
    if viewed.target is not _aten.unsqueeze.default:
        return False
    dim = viewed.args[1]
    return isinstance(dim, int) and 0 <= dim < last


def _order(permuted: Node) -> list[int]:
    """The dimensions of a permutation's input, in the order of its output."""
    dims: Any = permuted.args[1]
    return [dim % len(dims) for dim in dims]


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
