"""Operators of one request's graph without a rule: they become those that torch composes them of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree

from ..errors import LoweringError, at_line
from ..exported_graph import named_arguments
from ..ragged.rules import rule_of


def _cosine_similarity(a: torch.Tensor, b: torch.Tensor, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    pair = torch.broadcast_tensors(a, b)
    first, second = (x / torch.linalg.vector_norm(x, 2, dim, keepdim=True).clamp(min=eps) for x in pair)
    similarity: torch.Tensor = (first * second).sum(dim)
    return similarity


_MOST_SUBTRACTED = 25
"""Rows of `torch.cdist` for which eager mode subtracts; it multiplies matrices for more, which rounds otherwise."""


def _distances(a: torch.Tensor, b: torch.Tensor, p: float = 2, compute_mode: int | None = None) -> torch.Tensor:
    if p == 2 and (compute_mode == 1 or (compute_mode != 2 and _fixed_rows(a, b) > _MOST_SUBTRACTED)):
        product: torch.Tensor = torch.ops.aten._euclidean_dist(a, b)
        return product
    difference: torch.Tensor = torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)
    return difference


def _fixed_rows(*tensors: torch.Tensor) -> int:
    rows: list[Any] = [tensor.shape[-2] for tensor in tensors]
    return max((count for count in rows if isinstance(count, int)), default=0)


def reject_distances_of_timesteps(program: torch.export.ExportedProgram) -> None:
    """Refuse distances that eager mode computes in two ways. Raises `LoweringError`: names the line."""
    for node in program.graph.nodes:
        if node.target is not torch.ops.aten.cdist.default:
            continue
        a, b, p, mode = named_arguments(node.target, node.args, node.kwargs).values()
        tensors = a.meta["val"], b.meta["val"]
        is_mixed = p == 2 and mode in (None, 0) and _fixed_rows(*tensors) <= _MOST_SUBTRACTED
        if is_mixed and any(isinstance(tensor.shape[-2], torch.SymInt) for tensor in tensors):
            raise LoweringError(
                f"torch.cdist multiplies matrices for more than {_MOST_SUBTRACTED} rows, which rounds otherwise than "
                f"for fewer{at_line(node)}: pass compute_mode='donot_use_mm_for_euclid_dist'"
            )


_DECOMPOSED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.cosine_similarity.default: _cosine_similarity,
    torch.ops.aten.cdist.default: _distances,
    torch.ops.aten.to.other: lambda tensor, other, *_, **__: tensor.to(other.dtype),
}
_WITHIN_LOSSES = (torch.ops.aten.nll_loss_nd.default, torch.ops.aten.nll_loss.default)
"""Operators within cross entropy. Torch's table decomposes the second one to a sum, whichever reduction it has.

That also gives its shape where it is decomposed later, so the exporter's decompositions must be there from the start.
"""
_LEAVING_OUT = ("grid_sampler", "grid_sampler_2d", "multi_margin_loss", "multilabel_margin_loss")
_KERNELS = tuple(getattr(torch.ops.aten, name).default for name in _LEAVING_OUT)
"""Operators whose kernels leave out NaN, which torch's decompositions of them do not."""
_MADE = (torch.ops.aten.zero.default, torch.ops.aten._weight_norm_interface.default)
"""Operators that are made by functional forms of writes, and by decompositions: one pass decomposes them too."""
_MOST_PASSES = 4
_exporters_decompositions = cache(torch.export.default_decompositions)


def decomposed(exported: torch.export.ExportedProgram, own: Mapping[Any, Callable[..., Any]]) -> Any:
    """Return a functional program in which operators without a rule are those that torch composes them of.

    Losses are examples: `F.l1_loss`, `F.cross_entropy`. `own` are decompositions to be used in any case.

    Raises `LoweringError`: torch composes an operator otherwise than its kernel computes it.
    """
    for node in exported.graph.nodes:
        if node.target in _KERNELS:
            raise LoweringError(f"{node.target.overloadpacket} leaves out NaN, and has no rule{at_line(node)}")
    composed = _exporters_decompositions()
    inner = {target: composed[target] for target in (*_WITHIN_LOSSES, *_MADE)}
    table = {**own, **_DECOMPOSED, **inner, **decompositions_of(exported.graph_module)}
    if all(_stays(node, table) for node in exported.graph.nodes):
        return exported
    program = exported.run_decompositions(table)
    for _ in range(_MOST_PASSES):
        more = decompositions_of(program.graph_module)
        if more.keys() <= table.keys():
            break
        table = {**more, **table}
        program = program.run_decompositions(table)
    return program


def _stays(node: torch.fx.Node, table: Mapping[Any, Any]) -> bool:
    """Whether decomposing changes nothing in a node: it has no part in the table, and writes nothing in place."""
    target = node.target
    if node.op != "call_function" or getattr(target, "__module__", "") == "_operator":
        return node.op != "get_attr"  # the graph of a loop, or of a context
    return isinstance(target, torch._ops.OpOverload) and target not in table and not target._schema.is_mutable


def decompositions_of(module: torch.fx.GraphModule) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of operators without a rule in a graph and its loops; the exporter's come first."""
    graphs = [part.graph for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = {node.target for graph in graphs for node in graph.nodes if _returns_tensors(node)}
    found: dict[Any, Callable[..., Any]] = {}
    composed = _exporters_decompositions()
    for target in targets:
        if target.namespace != "aten" or rule_of(target) is not None or target in _DECOMPOSED:
            continue
        if target in composed:
            found[target] = composed[target]
        elif target in decomposition_table:
            found[target] = decomposition_table[target]
        elif target._can_decompose() and not target._schema.is_mutable:  # torch's own code in other operators
            found[target] = target.decompose
    return found


def _returns_tensors(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator of tensors, not of sizes."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return isinstance(node.target, torch._ops.OpOverload) and any(isinstance(v, torch.Tensor) for v in values)
