"""Showing on the graph that what stands in the padding cannot reach an answer.

The analysis is an abstract interpretation of the graph over three taints. `INDEPENDENT`: a value depends on no padding
at all. `PER_TIMESTEP`: it has one time dimension, and its values at a timestep depend on no padded timestep (its padded
part may hold anything). Otherwise it is `Tainted`, with the operator that made it so. Transfer rules exist for the
operators that keep timesteps apart. The result of an operator without a rule is tainted: so the analysis may reject a
harmless model, but never accepts a harmful one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..bucketing.shapes import TensorSpec
from .errors import node_line
from .outputs import output_nodes, symbolic_sizes, user_inputs
from .timestep_rules import (
    FACTORIES,
    FILL_FACTORIES,
    INDEPENDENT,
    PER_TIMESTEP,
    TAKES_SIZES,
    TAKES_SIZES_FIRST,
    Taint,
    Tainted,
    TaintMap,
    is_timestep_local,
    operator_name,
)


def find_padding_leak(
    exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], takes_lengths: bool
) -> Tainted | None:
    """None if no answer depends on padding; otherwise the first operator through which one may."""
    axes = symbolic_sizes(exported, inputs)
    if "time" not in axes:
        return None
    states = TaintMap(axes, user_inputs(exported)[-1] if takes_lengths else None)
    for node in exported.graph.nodes:
        if node.op != "output":
            states.of[node] = transfer(states, node)
    answers = (states.of[node] for node in output_nodes(exported))
    return next((state for state in answers if isinstance(state, Tainted)), None)


def transfer(states: TaintMap, node: torch.fx.Node) -> Taint:
    """The state of a node, given those of all nodes before it."""
    if node.op == "placeholder":
        return PER_TIMESTEP if states.time_dims(node) else INDEPENDENT
    if node.op == "call_function":
        return _judge_call(states, node)
    return INDEPENDENT


def _judge_call(states: TaintMap, node: torch.fx.Node) -> Taint:
    sources = [states.of[source] for source in node.all_input_nodes]
    for state in sources:
        if isinstance(state, Tainted):
            return state
    name = operator_name(node)
    if name in ("getitem", "aten.sym_size.int") or isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, int)):
        return _judge_number_or_element(states, node, name)
    if _uses_time_as_value(states, node, name) or states.has_derived_time_size(node):
        return Tainted(name, node_line(node))
    if PER_TIMESTEP not in sources and name not in FACTORIES and name not in FILL_FACTORIES:
        return PER_TIMESTEP if states.time_dims(node) else INDEPENDENT
    if is_timestep_local(states, node, name):
        return (
            PER_TIMESTEP
            if states.time_dims(node) or (PER_TIMESTEP in sources and states.is_tuple(node))
            else INDEPENDENT
        )
    return Tainted(name, node_line(node))


def _judge_number_or_element(states: TaintMap, node: torch.fx.Node, name: str) -> Taint:
    """A size is free (what is made of it is judged where it is used); an element is as its tuple and shape say."""
    if name != "getitem" or not isinstance(node.meta.get("val"), torch.Tensor):
        return INDEPENDENT
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    if operator_name(source).startswith("neuron_lstm."):
        return PER_TIMESTEP if node.args[1] == 0 and states.is_per_timestep(source.args[0]) else INDEPENDENT
    return states.of[source] if states.time_dims(node) else INDEPENDENT


def _uses_time_as_value(states: TaintMap, node: torch.fx.Node, name: str) -> bool:
    """Whether the *number* of padded timesteps goes into a value, as in `sum / T` (a shape may hold it)."""
    if name in TAKES_SIZES:
        return False
    if name in TAKES_SIZES_FIRST:
        return any(states.is_time_expression(argument) for argument in [*node.args[1:], *node.kwargs.values()])
    if name == "aten.slice":
        ends_with_time = bool(states.time_dims(node)) and not any(states.is_time_expression(a) for a in node.args[2:3])
        return not ends_with_time and any(states.is_time_expression(a) for a in node.args)
    return any(states.is_time_expression(source) for source in node.all_input_nodes)
