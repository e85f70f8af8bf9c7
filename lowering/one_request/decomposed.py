"""Operators of a request's graph that become several, for which there are rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree

from ..ragged.rules import rule_of


def _cosine_similarity(a: torch.Tensor, b: torch.Tensor, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    rank = max(a.dim(), b.dim())
    a, b = (x.reshape(*[1] * (rank - x.dim()), *x.shape) for x in (a, b))
    products = [(x * y).sum(dim) for x, y in ((a, b), (a, a), (b, b))]
    norms = [product.sqrt().clamp(min=eps) for product in products[1:]]
    return products[0] / (norms[0] * norms[1])


DECOMPOSED: dict[Any, Callable[..., Any]] = {torch.ops.aten.cosine_similarity.default: _cosine_similarity}
"""Operators that are decomposed in a way of this package."""
_WITHIN_LOSSES = (torch.ops.aten.nll_loss_nd.default, torch.ops.aten.nll_loss.default)
"""Operators within cross entropy. Torch's table decomposes the second one to a sum, whichever reduction it has.

That also gives its shape where it is decomposed later, so the exporter's decompositions must be there from the start.
"""
_MOST_PASSES = 4


def decomposed(exported: torch.export.ExportedProgram, own: Mapping[Any, Callable[..., Any]]) -> Any:
    """Return a functional program in which operators without a rule are those that torch composes them of.

    Losses are examples: `F.l1_loss`, `F.cross_entropy`. `own` are decompositions to be used in any case.
    """
    composed = torch.export.default_decompositions()
    inner = {target: composed[target] for target in _WITHIN_LOSSES}
    table = {**own, **DECOMPOSED, **inner, **_of_torch(exported)}
    program = exported.run_decompositions(table)
    for _ in range(_MOST_PASSES):
        more = {target: function for target, function in _of_torch(program).items() if target not in table}
        if not more:
            break
        table |= more
        program = program.run_decompositions(table)
    return program


def _of_torch(exported: torch.export.ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of the operators of a graph and of its loops that have no rule.

    Those of the exporter are the operators' own, and come first.
    """
    graphs = [part.graph for part in exported.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = {node.target for graph in graphs for node in graph.nodes if _returns_tensors(node)}
    found: dict[Any, Callable[..., Any]] = {}
    composed = torch.export.default_decompositions()
    for target in targets:
        if target.namespace != "aten" or rule_of(target) is not None or target in DECOMPOSED:
            continue
        if target in composed:
            found[target] = composed[target]
        elif target in decomposition_table:
            found[target] = decomposition_table[target]
    return found


def _returns_tensors(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator of tensors, not of sizes."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return isinstance(node.target, torch._ops.OpOverload) and any(isinstance(v, torch.Tensor) for v in values)
