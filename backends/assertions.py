"""Assertions in the graphs of exported programs: calls that compute nothing.

Used only while packaging: this file is not carried in archives.
"""

from __future__ import annotations

from torch.fx import Node

_WORDS = ("assert", "sym_constrain", "_check")


def is_assertion(node: Node) -> bool:
    """Whether a call only checks its arguments, and nothing uses it."""
    return node.op == "call_function" and not node.users and any(word in str(node.target) for word in _WORDS)
