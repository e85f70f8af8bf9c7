"""Sizes that follow from a sequence's number of timesteps, as a convolution with a stride makes them.

They are written as expressions of `time` in integers: `time`, `2*time - 1`, `(time - 1)//2 + 1`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import cache

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"Max": max, "Min": min}


def check_time_size(text: str) -> None:
    """Refuse what is no expression of `time`.

    >>> check_time_size("time / 2")
    Traceback (most recent call last):
    ValueError: expected an integer expression of time, got 'time / 2'

    Raises:
        ValueError: it is none; the message has its first characters.
    """
    try:
        _parsed(text)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        raise ValueError(f"expected an integer expression of time, got {text[:60]!r}") from None


def size_at(size: str, time: int) -> int:
    """Return a size for a sequence of `time` timesteps.

    >>> size_at("(time - 1)//2 + 1", 23)
    12
    """
    return time if size == "time" else _evaluated(_parsed(size), time)


@cache
def _parsed(text: str) -> ast.expr:
    tree = ast.parse(text, mode="eval").body
    if not any(isinstance(node, ast.Name) and node.id == "time" for node in ast.walk(tree)):
        raise ValueError(text)
    _evaluated(tree, 1 << 16)  # every node is of a kind that has a value
    return tree


def _evaluated(node: ast.expr, time: int) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id == "time":
        return time
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand, time)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluated(node.left, time), _evaluated(node.right, time))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and node.args:
        return _FUNCTIONS[node.func.id](*[_evaluated(argument, time) for argument in node.args])
    raise ValueError(ast.dump(node))
