"""Checks of values in torch's own code while forward() is traced, such as those of distributions.

A program has no such checks. Their other side is an error, so the code after them is followed.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).parent)


def truth_that_passes(frame: FrameType) -> bool | None:
    """Return the truth of a tensor with which a check in torch's own code raises nothing.

    None for other code, and for branches that do something else.
    """
    file = frame.f_code.co_filename
    return _checks(file).get(frame.f_lineno) if file.startswith(_TORCH) else None


@cache
def _checks(file: str) -> dict[int, bool]:
    """Return the lines of conditions that only raise, with the truth for which they do not."""
    found: dict[int, bool] = {}
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Raise) or _branches(node.body):
            continue
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        condition = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
        if isinstance(condition, ast.Call):
            lines = range(node.test.lineno, (node.test.end_lineno or node.test.lineno) + 1)
            found.update(dict.fromkeys(lines, negated))
    return found


def _branches(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, (ast.Return, ast.For, ast.While)) for part in body for node in ast.walk(part))
