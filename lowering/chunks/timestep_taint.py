"""Timestep taint analysis: which values of a program over ragged batches depend on one timestep alone.

The analysis is an abstract interpretation of the graph over three taints. `INDEPENDENT`: a value depends on no timestep
beyond a row's own, and has none itself. `PER_TIMESTEP`: it has one time dimension, and its values at a timestep depend
on no other one, but through a recurrence or a sum. Otherwise it is `Tainted`, with the operator that made it so. The
result of an operator without a rule is tainted: so the analysis may reject a model, but never accepts a wrong one.
"""

from __future__ import annotations

import torch

from ...backends.recurrent_operators import is_recurrent
from ..errors import node_line
from ..graph_calls import operator_name
from ..outputs import axis_of
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
)


def transfer(taints: TaintMap, node: torch.fx.Node) -> Taint:
    """Compute the taint of a node from the taints of all nodes before it."""
    if node.op == "placeholder":
        return PER_TIMESTEP if taints.time_dims(node) else INDEPENDENT
    if node.op == "call_function":
        return _transfer_call(taints, node)
    return INDEPENDENT


def _transfer_call(taints: TaintMap, node: torch.fx.Node) -> Taint:
    sources = [taints.of[source] for source in node.all_input_nodes]
    for taint in sources:
        if isinstance(taint, Tainted):
            return taint
    name = operator_name(node)
    if name in ("getitem", "aten.sym_size.int") or isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, int)):
        return _transfer_size_or_element(taints, node, name)
    # a size that is computed from time but not equal to it, as `x[:, 1:]` has
    derived = [size for size in getattr(node.meta.get("val"), "shape", ()) if axis_of(size, taints.axes) is None]
    if _uses_time_as_value(taints, node, name) or any(map(taints.has_time, derived)):
        return Tainted(name, node_line(node))
    if PER_TIMESTEP not in sources and name not in FACTORIES and name not in FILL_FACTORIES:
        return PER_TIMESTEP if taints.time_dims(node) else INDEPENDENT
    if is_timestep_local(taints, node, name):
        over_time = taints.time_dims(node) or (PER_TIMESTEP in sources and taints.is_tuple(node))
        return PER_TIMESTEP if over_time else INDEPENDENT
    return Tainted(name, node_line(node))


def _transfer_size_or_element(taints: TaintMap, node: torch.fx.Node, name: str) -> Taint:
    """Treat a size as independent (its uses are checked elsewhere). Derive an element's taint from its tuple."""
    if name != "getitem" or not isinstance(node.meta.get("val"), torch.Tensor):
        return INDEPENDENT
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    if is_recurrent(source.target):
        return (
            PER_TIMESTEP if node.args[1] == 0 and taints.of[source.all_input_nodes[0]] == PER_TIMESTEP else INDEPENDENT
        )
    return taints.of[source] if taints.time_dims(node) else INDEPENDENT


def _uses_time_as_value(taints: TaintMap, node: torch.fx.Node, name: str) -> bool:
    """Whether a value depends on the number of padded timesteps, as in `sum / T`. A shape may contain that number."""
    if name in TAKES_SIZES:
        return False
    if name in TAKES_SIZES_FIRST:
        return any(taints.is_time_expression(argument) for argument in [*node.args[1:], *node.kwargs.values()])
    if name in ("aten.slice", "aten.narrow"):
        ends_with_time = bool(taints.time_dims(node)) and not any(taints.is_time_expression(a) for a in node.args[2:3])
        return not ends_with_time and any(taints.is_time_expression(a) for a in node.args)
    return any(taints.is_time_expression(source) for source in node.all_input_nodes)
