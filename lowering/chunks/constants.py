"""Constants of an exported graph: tensors that are filled with one number."""

from __future__ import annotations

from torch.fx import Node

from ..proof.graph_calls import argument, operator_name
from ..proof.timestep_rules import VALUE_PRESERVING

_ZEROS = {"aten.zeros", "aten.new_zeros", "aten.zeros_like"}
_FILLED = {"aten.full", "aten.new_full", "aten.full_like"}


def constant_value(node: Node) -> float | None:
    """Return the number that fills a tensor, if the graph shows it."""
    while operator_name(node) in {*VALUE_PRESERVING, "aten.slice", "aten.select"}:
        node = node.all_input_nodes[0]
    if operator_name(node) in _ZEROS:
        return 0.0
    filled = argument(node, "fill_value") if operator_name(node) in _FILLED else None
    return float(filled) if isinstance(filled, (int, float)) else None
