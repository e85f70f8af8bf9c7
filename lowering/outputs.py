"""Layouts of a program's tensors, read off the exported graph and never guessed from values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from ..bucketing.shapes import Axis, TensorSpec
from .errors import LoweringError
from .graph_calls import class_count, operands

_KEEPS_VALUES = {
    f"aten.{name}"
    for name in (
        *("to", "_to_copy", "view", "reshape", "transpose", "permute", "t", "unsqueeze", "squeeze", "contiguous"),
        *("clone", "slice", "select", "expand", "detach", "flatten", "alias", "movedim", "unflatten"),
        *("lift_fresh_copy", "cpu"),
    )
}


def user_inputs(exported: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Return the placeholders of the declared inputs (and lengths), in order."""
    by_name = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    return [by_name[cast(str, name)] for name in exported.graph_signature.user_inputs]


def symbolic_sizes(exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec]) -> dict[Axis, Any]:
    """Map batch and time to their symbolic sizes."""
    found: dict[Axis, Any] = {}
    for spec, node in zip(inputs, user_inputs(exported), strict=False):
        for index, size in enumerate(spec.shape):
            if isinstance(size, str):
                found[cast(Axis, size)] = node.meta["val"].shape[index]
    return found


def axis_of(size: Any, axes: dict[Axis, Any]) -> Axis | None:
    """Return the dynamic dimension that a symbolic size belongs to, if any."""
    if isinstance(size, torch.SymInt):
        for axis, symbol in axes.items():
            if isinstance(symbol, torch.SymInt) and size.node.expr == symbol.node.expr:
                return axis
    return None


def output_nodes(exported: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Return the nodes of the outputs, in order."""
    return list(exported.graph.output_node().args[0])


def output_names(tree: pytree.TreeSpec, nodes: Sequence[object], names: Sequence[str] | None) -> Sequence[str]:
    """Return the names of the configuration, or else `logits` in a dict, `1.0` in nested tuples, `output` if single.

    Raises `LoweringError`: the number of names differs.
    """
    marks = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
    paths = [".".join(_key_name(key) for key in path) for path, _ in pytree.tree_leaves_with_path(marks)]
    if len(paths) != len(nodes):  # leaves that are None are no outputs
        paths = [str(index) for index in range(len(nodes))]
    own = [path or "output" for path in paths]
    if names is not None and len(names) != len(own):
        raise LoweringError(
            f"outputs: {len(names)} names ({', '.join(names)}) for the {len(own)} tensors forward() returns "
            f"({', '.join(own)}). Write one name for each, or leave `outputs` out"
        )
    return names or own


def _key_name(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def with_vocabularies(
    exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], known: Mapping[str, int] | None = None
) -> tuple[TensorSpec, ...]:
    """Add the vocabulary size to inputs of ids, on which some engines abort beyond it; `known` are found before."""
    bounds = _smaller(vocabularies(exported), known or {})
    pairs = zip(inputs, user_inputs(exported), strict=False)
    return tuple(replace(spec, vocabulary=bounds.get(node.name)) for spec, node in pairs)


def vocabularies(exported: torch.export.ExportedProgram) -> dict[str, int]:
    """Find the vocabulary sizes of the nodes whose values are ids, by their names."""
    bounds: dict[str, int] = {}
    for node in exported.graph.nodes:
        if str(node.target) == "aten.embedding.default":
            weight, ids = operands(node)[:2]
            bounds = _smaller(bounds, {value_source(ids).name: int(weight.meta["val"].shape[0])})
        elif str(node.target) == "aten.one_hot.default" and (classes := class_count(node)) is not None:
            bounds = _smaller(bounds, {value_source(operands(node)[0]).name: classes})
    return bounds


def _smaller(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Merge sizes by name: the smaller one counts."""
    return {**first, **{name: min(size, first.get(name, size)) for name, size in second.items()}}


def value_source(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node that computes a tensor's values, through operators that only move or convert them."""
    while node.op == "call_function" and str(node.target).rsplit(".", 1)[0] in _KEEPS_VALUES:
        node = cast(torch.fx.Node, node.args[0])
    return node
