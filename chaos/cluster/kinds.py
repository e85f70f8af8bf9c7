"""Kinds of disturbances of a cluster, and the moments at which they are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum


class Kind(Enum):
    """A disturbance, by its name in the report."""

    REPLICA = "replicas killed"
    NODE = "nodes removed"
    PRIMARY = "Redis primaries killed"


def due(made: Counter[Kind], wanted: Mapping[Kind, int], share: float) -> Kind:
    """The kind of the next disturbance, when `share` of the answers have been given.

    Nodes and primaries are spread evenly over the run, as often as wanted; before, between and after them replicas are
    killed.

    >>> wanted = {Kind.NODE: 2, Kind.PRIMARY: 1}
    >>> due(Counter(), wanted, 0.2), due(Counter(), wanted, 0.25)
    (<Kind.REPLICA: 'replicas killed'>, <Kind.NODE: 'nodes removed'>)
    """
    for kind in (Kind.NODE, Kind.PRIMARY):
        if made[kind] < wanted[kind] and share >= (made[kind] + 0.5) / wanted[kind]:
            return kind
    return Kind.REPLICA


def enough(made: Counter[Kind], wanted: Mapping[Kind, int]) -> bool:
    """Whether each kind was made as often as wanted."""
    return all(made[kind] >= count for kind, count in wanted.items())
