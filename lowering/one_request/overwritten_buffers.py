"""Buffers and parameters that a model overwrites before it reads them.

They are a place for intermediate results, no state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from ..errors import FinalRefusal, node_line, source_suffix

_aten = torch.ops.aten
_FILLS = {
    _aten.zero.default: 0,
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.fill.Scalar: None,
    _aten.full_like.default: None,
}
"""Operators that read the size of a tensor only, with the number that they write."""


class KeepsState(FinalRefusal):
    """A model whose outputs depend on earlier requests."""


def drop_overwritten_buffers(program: torch.export.ExportedProgram) -> None:
    """Remove the writes to buffers and parameters from the outputs of a functional graph.

    Raises:
        KeepsState: the graph reads one that it writes, so that requests would depend on earlier ones.
    """
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    if not written:
        return
    kept = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    holders = {name for name, target in kept.items() if target in written}
    graph = program.graph
    for node in [node for node in graph.nodes if node.op == "placeholder" and node.name in holders]:
        for user in [user for user in node.users if user.target in _FILLS]:
            _create(user)
    output = graph.output_node()
    kinds = [spec.kind for spec in signature.output_specs]
    results: Any = output.args[0]
    output.args = (tuple(r for r, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT),)
    signature.output_specs[:] = [spec for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in holders and node.users:
            at = source_suffix(node_line(next(iter(node.users))))
            name = kept[node.name]
            raise KeepsState(
                f"the model reads {name}, which an earlier call wrote{at}: a request would depend on the one before. "
                "Take it as an input and return it as an output, or set it in forward() before it is read"
            )
    program.graph_module.recompile()


def _create(node: Node) -> None:
    """Replace a tensor made like a buffer by one made of numbers."""
    made = node.meta["val"]
    known = _FILLS[node.target]  # type: ignore[index]  # an operator
    number: Any = node.args[1] if known is None else known
    with node.graph.inserting_before(node):
        new = node.graph.call_function(_aten.full.default, (list(made.shape), number), {"dtype": made.dtype})
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
