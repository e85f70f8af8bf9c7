"""Number of classes of a `one_hot`."""

from __future__ import annotations

from torch.fx import Node


def class_count(node: Node) -> int | None:
    """Return the number of classes that a call names; None where it is the largest id of the batch, plus 1."""
    _, given = (*node.args, *node.kwargs.values(), -1)[:2]
    return given if isinstance(given, int) and given > 0 else None
