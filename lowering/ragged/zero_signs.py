"""Operators that tell 0.0 from -0.0: before them it counts which of the two equal numbers is chosen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from .sizes import SizeExpr, is_ragged
from .value import Call, NoRule

_BY_SIGN = {"signbit": (0,), "copysign": (1,), "atan2": (0, 1), "arctan2": (0, 1)}
"""Arguments of which the sign itself is read."""
_BY_DIVISION = {"div": (1,), "floor_divide": (1,), "addcdiv": (2,), "reciprocal": (0,), "rsqrt": (0,), "pow": (0,)}
"""Arguments by which is divided: 1 / 0.0 is inf, and 1 / -0.0 is -inf."""
_ALIKE = {"abs", "exp", "sigmoid", "cos", "cosh", "_softmax", "_log_softmax", "linalg_vector_norm"}
"""Operators whose results are the same for both."""
_CHOICE = "a later operator tells 0.0 from -0.0, and which of them torch chooses depends on the number of elements"


def sign_sensitive(graph: Graph, divisions: bool, outputs: bool = False) -> frozenset[Node]:
    """Return the nodes in whose results a later operator tells 0.0 from -0.0.

    With `divisions`, one that divides by them is such an operator; with `outputs`, so is whoever takes the graph's.
    """
    result: set[Node] = set()
    for node in reversed(graph.nodes):
        inputs = node.all_input_nodes
        if (node.op == "output" and outputs) or (node in result and not hides(node)):
            result.update(inputs)
        if node.target is torch.ops.higher_order.scan and _is_sensitive_within(node):
            result.update(inputs)
        result.update(argument for argument in _read(node, divisions) if isinstance(argument, Node))
    return frozenset(result)


def check_choice(call: Call, by_sign: bool) -> None:
    """Refuse to choose between 0.0 and -0.0. Raises `NoRule`: torch's choice depends on the number of elements.

    `by_sign`: a later operator reads the sign itself, and not only divides by the result.
    """
    name = _name(call.target)
    over_all = "dim" not in call.arguments and name in ("max", "min", "median", "nanmedian")
    if (over_all or name in ("amax", "amin")) and _ragged(call.value().sizes) > _ragged(call.sizes[0]):
        raise NoRule(_CHOICE)
    if by_sign and name in ("maximum", "minimum", "fmax", "fmin"):
        raise NoRule(_CHOICE)


def _ragged(sizes: Iterable[SizeExpr]) -> int:
    return sum(map(is_ragged, sizes))


def hides(node: Node) -> bool:
    """Whether the result is the same for 0.0 and -0.0, as that of `exp` or of an addition of 1e-6."""
    name, number = _name(node.target), node.args[1] if len(node.args) > 1 else None
    if isinstance(number, (int, float)):
        return (name in ("add", "sub") and number != 0) or (name in ("clamp", "clamp_min") and number > 0)
    return name in _ALIKE


def _name(target: Any) -> str:
    return (*str(target).split("."), "")[1]


def _read(node: Node, divisions: bool) -> list[Any]:
    name = _name(node.target)
    places = _BY_SIGN.get(name, ()) or (_BY_DIVISION.get(name, ()) if divisions else ())
    exponent = node.args[1] if name == "pow" else -1
    is_positive = isinstance(exponent, (int, float)) and exponent >= 0
    return [] if is_positive else [node.args[place] for place in places]


def _is_sensitive_within(scan: Node) -> bool:
    step: Any = getattr(scan.graph.owning_module, str(scan.args[0].target))  # type: ignore[union-attr]  # a node
    return any(node.op == "placeholder" for node in sign_sensitive(step.graph, divisions=True))
