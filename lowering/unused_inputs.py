"""Declared inputs on which no output depends, as a misspelt optional argument of forward() has them."""

from __future__ import annotations

import torch

from ..backends.assertions import is_assertion
from .outputs import user_inputs
from .program import LoweredModel


def unused_inputs(program: LoweredModel) -> tuple[str, ...]:
    """Return the names of inputs whose values the whole program does not use."""
    nodes = zip(program.inputs, user_inputs(program.exported), strict=False)  # lengths come after the inputs
    return tuple(spec.name for spec, node in nodes if all(_reads_size(user) for user in node.users))


def _reads_size(node: torch.fx.Node) -> bool:
    return is_assertion(node) or "sym_size" in str(node.target)
