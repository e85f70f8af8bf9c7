"""Calls and layouts of tensors in an exported graph, as the analyses read them: never guessed from values."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..bucketing.shapes import Axis, TensorSpec
from .errors import LoweringError, node_line
from .packing.packed_placeholder import same_size


def operator_name(node: Node) -> str:
    """Return the operator's name without overload (`aten.sum`), or `getitem` for an element of a tuple."""
    if node.target is operator.getitem:
        return "getitem"
    target = str(node.target)
    return target if "sym_size" in target else ".".join(target.split(".")[:2])


def display_name(node: Node) -> str:
    """Name the operator for a message; for an element of a tuple, the operator that returned the tuple."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return named_at(operator_name(node), node_line(node))


def named_at(operator: str, line: str | None) -> str:
    """Return the name of an operator for a message with the user's line, if the line has the name or is not known."""
    return operator if line is None or re.search(rf"\b{operator.rpartition('.')[2]}\b", line) else "an operation"


def named_arguments(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names in the operator's schema, defaults included."""
    defaults = {declared.name: declared.default_value for declared in operator._schema.arguments}
    return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}


def argument(node: Node, name: str, default: Any = None) -> Any:
    """Return an argument of a call by its name in the operator's schema, or its default there; `default` without it."""
    return named_arguments(node.target, node.args, node.kwargs).get(name, default)


def each_dim(given: Any, number: int) -> list[Any]:
    """Return a size for each of so many dimensions, as windows have them; one alone holds for all."""
    sizes = list(given) if isinstance(given, Sequence) else [given]
    return sizes * number if len(sizes) == 1 else sizes


def rank(node: Node) -> int:
    """Return the number of dimensions of a node's tensor."""
    return len(node.meta["val"].shape)


def are_alike(first: Node, second: Node) -> bool:
    """Whether two tensors have the same type and sizes."""
    ours, theirs = first.meta.get("val"), second.meta.get("val")
    if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return False
    return ours.dtype is theirs.dtype and list(map(str, ours.shape)) == list(map(str, theirs.shape))


def dims_argument(node: Node) -> list[int] | None:
    """Return the non-negative `dim` of a reduction or normalisation; None if it covers all dimensions."""
    dims = argument(node, "dim", argument(node, "dims"))
    if dims is None or dims == []:
        return None
    dimensions = rank(node.all_input_nodes[0])
    return [int(dim) % dimensions for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]


RuleT = TypeVar("RuleT")


def rule_table(*groups: tuple[RuleT, str]) -> dict[str, RuleT]:
    """Map the operators of torch that are named with each rule to it.

    >>> rule_table((1, "sum mean"), (2, "cat"))
    {'aten.sum': 1, 'aten.mean': 1, 'aten.cat': 2}
    """
    return {f"aten.{name}": rule for rule, names in groups for name in names.split()}


def aten_names(names: str) -> set[str]:
    """Return the names of operators of torch as `operator_name` does."""
    return {f"aten.{name}" for name in names.split()}


def class_count(node: Node) -> int | None:
    """Return the number of classes that a call names; None where the ids of the batch decide it."""
    given = argument(node, "num_classes")
    return given if isinstance(given, int) and given > 0 else None


_KEEPS_VALUES = aten_names(
    "to _to_copy view reshape transpose permute t unsqueeze squeeze contiguous clone slice select expand detach "
    "flatten alias movedim unflatten lift_fresh_copy cpu"
)


def user_inputs(exported: torch.export.ExportedProgram) -> list[Node]:
    """Return the placeholders of the declared inputs (and lengths), in order."""
    by_name = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    return [by_name[cast(str, name)] for name in exported.graph_signature.user_inputs]


def symbolic_sizes(exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec]) -> dict[Axis, Any]:
    """Map batch and time to their symbolic sizes."""
    pairs = zip(inputs, user_inputs(exported), strict=False)
    sizes = [pair for spec, node in pairs for pair in zip(spec.shape, node.meta["val"].shape, strict=True)]
    return {cast(Axis, axis): size for axis, size in sizes if isinstance(axis, str)}


def axis_of(size: Any, axes: dict[Axis, Any]) -> Axis | None:
    """Return the dynamic dimension that a symbolic size belongs to, if any."""
    is_symbolic = isinstance(size, torch.SymInt)
    return next((axis for axis, symbol in axes.items() if is_symbolic and same_size(size, symbol)), None)


def output_nodes(exported: torch.export.ExportedProgram) -> list[Node]:
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
    return str(next((getattr(key, own) for own in ("key", "idx", "name") if hasattr(key, own)), key))


def with_vocabularies(
    exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], known: Mapping[str, int]
) -> tuple[TensorSpec, ...]:
    """Add the vocabulary size to inputs of ids, on which some engines abort beyond it; `known` are found before."""
    bounds = _smaller(vocabularies(exported), known)
    pairs = zip(inputs, user_inputs(exported), strict=False)
    return tuple(replace(spec, vocabulary=bounds.get(node.name)) for spec, node in pairs)


def vocabularies(exported: torch.export.ExportedProgram) -> dict[str, int]:
    """Find the vocabulary sizes of the nodes whose values are ids, by their names."""
    bounds: dict[str, int] = {}
    for node in exported.graph.nodes:
        if str(node.target) == "aten.embedding.default":
            weight, ids = argument(node, "weight"), argument(node, "indices")
            bounds = _smaller(bounds, {value_source(ids).name: int(weight.meta["val"].shape[0])})
        elif str(node.target) == "aten.one_hot.default" and (classes := class_count(node)) is not None:
            bounds = _smaller(bounds, {value_source(argument(node, "self")).name: classes})
    return bounds


def _smaller(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Merge sizes by name: the smaller one counts."""
    return {**first, **{name: min(size, first.get(name, size)) for name, size in second.items()}}


def value_source(node: Node, through: Collection[str] = _KEEPS_VALUES) -> Node:
    """Return the node that computes a tensor's values, `through` operators that only move or convert them."""
    while operator_name(node) in through:
        node = cast(Node, node.args[0])
    return node
