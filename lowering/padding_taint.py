"""Showing on the graph that what stands in the padding cannot reach an answer.

Every value of the graph is in one of three states. `FREE`: it depends on no padding at all. `STEPS`: it has one time
dimension, and what it holds at a timestep depends on no padded timestep (its padded part may hold anything). Else it is
`Reached`, with the operator that did it. Rules exist for the operators that keep timesteps apart; an operator without a
rule counts as reaching, so the proof can fail for a harmless model but not succeed for a harmful one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..bucketing.shapes import TensorSpec
from .errors import node_line
from .outputs import output_nodes, symbols, user_inputs
from .timestep_rules import (
    FACTORIES,
    FILLED,
    FREE,
    STEPS,
    TAKES_SIZES,
    TAKES_SIZES_FIRST,
    Reached,
    State,
    States,
    keeps_timesteps_apart,
    operator_name,
)


def prove(exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], takes_lengths: bool) -> Reached | None:
    """None if no answer depends on padding; otherwise the first operator through which one may."""
    axes = symbols(exported, inputs)
    if "time" not in axes:
        return None
    states = States(axes, user_inputs(exported)[-1] if takes_lengths else None)
    for node in exported.graph.nodes:
        if node.op != "output":
            states.of[node] = judge(states, node)
    answers = (states.of[node] for node in output_nodes(exported))
    return next((state for state in answers if isinstance(state, Reached)), None)


def judge(states: States, node: torch.fx.Node) -> State:
    """The state of a node, given those of all nodes before it."""
    if node.op == "placeholder":
        return STEPS if states.time_dims(node) else FREE
    if node.op == "call_function":
        return _judge_call(states, node)
    return FREE


def _judge_call(states: States, node: torch.fx.Node) -> State:
    sources = [states.of[source] for source in node.all_input_nodes]
    for state in sources:
        if isinstance(state, Reached):
            return state
    name = operator_name(node)
    if name in ("getitem", "aten.sym_size.int") or isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, int)):
        return _judge_number_or_element(states, node, name)
    if _uses_time_as_value(states, node, name) or states.has_odd_time(node):
        return Reached(name, node_line(node))
    if STEPS not in sources and name not in FACTORIES and name not in FILLED:
        return STEPS if states.time_dims(node) else FREE
    if keeps_timesteps_apart(states, node, name):
        return STEPS if states.time_dims(node) or (STEPS in sources and states.is_tuple(node)) else FREE
    return Reached(name, node_line(node))


def _judge_number_or_element(states: States, node: torch.fx.Node, name: str) -> State:
    """A size is free (what is made of it is judged where it is used); an element is as its tuple and shape say."""
    if name != "getitem" or not isinstance(node.meta.get("val"), torch.Tensor):
        return FREE
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    if operator_name(source).startswith("neuron_lstm."):
        return STEPS if node.args[1] == 0 and states.is_step_tensor(source.args[0]) else FREE
    return states.of[source] if states.time_dims(node) else FREE


def _uses_time_as_value(states: States, node: torch.fx.Node, name: str) -> bool:
    """Whether the *number* of padded timesteps goes into a value, as in `sum / T` (a shape may hold it)."""
    if name in TAKES_SIZES:
        return False
    if name in TAKES_SIZES_FIRST:
        return any(states.counts_time(argument) for argument in [*node.args[1:], *node.kwargs.values()])
    if name == "aten.slice":
        ends_with_time = bool(states.time_dims(node)) and not any(states.counts_time(a) for a in node.args[2:3])
        return not ends_with_time and any(states.counts_time(a) for a in node.args)
    return any(states.counts_time(source) for source in node.all_input_nodes)
