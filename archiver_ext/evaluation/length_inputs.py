"""Inputs of a model that are the lengths of its recurrences, beside the lengths of requests.

`pack_padded_sequence` fails on a length that is no number of timesteps, and a program would compute something. So
requests are checked against the declared range of these inputs.
"""

from __future__ import annotations

from torch.fx import Node

from ...backends.recurrent_calls import is_recurrent
from ...lowering.program import LoweredModel

_SAME_VALUES = frozenset(
    f"aten.{name}"
    for name in (
        "_to_copy.default",
        "alias.default",
        "clone.default",
        "contiguous.default",
        "flatten.using_ints",
        "reshape.default",
        "to.dtype",
        "to.dtype_layout",
        "view.default",
    )
)
"""Operators that keep all values of a tensor of whole numbers."""


def length_inputs(program: LoweredModel) -> frozenset[str]:
    """Return the names of the declared inputs by which a recurrence stops its rows."""
    placeholders = program.exported.graph_signature.user_inputs
    names = dict(zip(map(str, placeholders), (spec.name for spec in program.inputs), strict=False))
    calls = (node for node in program.exported.graph.nodes if is_recurrent(node.target))
    sources = {_source(call.args[1]).name for call in calls if isinstance(call.args[1], Node)}
    return frozenset(names[source] for source in sources if source in names)


def _source(node: Node) -> Node:
    """The node that a chain of operators takes its values from."""
    while str(node.target) in _SAME_VALUES and isinstance(node.args[0], Node):
        node = node.args[0]
    return node
