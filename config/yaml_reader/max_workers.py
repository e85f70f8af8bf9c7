"""The number of workers that a YAML gives TorchServe."""

from __future__ import annotations

import yaml

from .merges import MergedEntries
from .nodes import UNREADABLE


def max_workers(text: str) -> object:
    r"""Return `maxWorkers` of a YAML; None if it has none, or if TorchServe cannot read it either.

    >>> max_workers("minWorkers: 2\nmaxWorkers: 2"), max_workers("[maxWorkers"), max_workers("")
    (2, None, None)
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        merged = MergedEntries()
        merged.count(root)
        if root is None or merged.is_excessive:
            return None
        found = yaml.constructor.SafeConstructor().construct_document(root)
    except (*UNREADABLE, RecursionError):
        return None
    return found.get("maxWorkers") if isinstance(found, dict) else None
