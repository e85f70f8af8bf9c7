"""Calls of torch's operators in an exported graph, as the analyses read them."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

import torch
from torch.fx import Node


def operator_name(node: Node) -> str:
    """Return the operator's name without overload (`aten.sum`), or `getitem` for an element of a tuple."""
    if node.target is operator.getitem:
        return "getitem"
    target = str(node.target)
    return target if "sym_size" in target else ".".join(target.split(".")[:2])


def display_name(node: Node) -> str:
    """Name the operator (`aten.mean`); for an element of a tuple, the operator that returned the tuple."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return operator_name(node)


def operands(node: Node) -> tuple[Any, ...]:
    """Return the arguments of a call, whose types are those of its operator's schema."""
    return node.args


def argument(node: Node, name: str, default: Any = None) -> Any:
    """Return an argument of a call by its name in the operator's schema, or its default there; `default` without it."""
    for position, declared in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]  # an operator
        if declared.name == name:
            return node.args[position] if position < len(node.args) else node.kwargs.get(name, declared.default_value)
    return default


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
    names = {declared.name for declared in node.target._schema.arguments}  # type: ignore[union-attr]  # an operator
    for name in ("dim", "dims"):
        if name in names:
            dims = argument(node, name)
            if dims is None or dims == []:
                return None
            dimensions = rank(node.all_input_nodes[0])
            return [int(dim) % dimensions for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
    return None


RuleT = TypeVar("RuleT")


def rule_table(*groups: tuple[RuleT, str]) -> dict[str, RuleT]:
    """Map the operators of torch that are named with each rule to it.

    >>> rule_table((1, "sum mean"), (2, "cat"))
    {'aten.sum': 1, 'aten.mean': 1, 'aten.cat': 2}
    """
    return {f"aten.{name}": rule for rule, names in groups for name in names.split()}


def class_count(node: Node) -> int | None:
    """Return the number of classes that a call names; None where the ids of the batch decide it."""
    _, given = (*node.args, *node.kwargs.values(), -1)[:2]
    return given if isinstance(given, int) and given > 0 else None
