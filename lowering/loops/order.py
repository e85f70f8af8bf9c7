"""Order of computation: each unit after its arguments, those of one recurrence together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import networkx as nx

from .recipe import Listed, Member, Recipe, Result, Run, Starting, Unit


def evaluation_order(recipe: Recipe) -> list[list[int]]:
    """Return the units in an order in which each has its arguments; those of one recurrence together."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(recipe.units)))
    for index, unit in enumerate(recipe.units):
        graph.add_edges_from((source, index) for source in sources_of(unit))
    if recipe.frames is not None:  # everything else may need to know how many steps the loops have
        first = {recipe.frames[0], *nx.ancestors(graph, recipe.frames[0])}
        graph.add_edges_from((recipe.frames[0], other) for other in set(graph) - first)
    components = nx.condensation(graph)
    order = nx.lexicographical_topological_sort(components, key=lambda c: min(components.nodes[c]["members"]))
    return [sorted(components.nodes[component]["members"]) for component in order]


def sources_of(unit: Unit) -> set[int]:
    """Return the units whose values a unit takes."""
    operands = operands_of((*unit.args, *unit.kwargs.values()))
    return {operand.unit for operand in operands if isinstance(operand, Result | Member | Run)}


def operands_of(arguments: Iterable[Any]) -> list[Any]:
    """Return arguments, those within lists, and both parts of states."""
    found: list[Any] = []
    pending = list(arguments)
    while pending:
        operand = pending.pop()
        found.append(operand)
        match operand:
            case Starting(first, rest):
                pending += [first, rest]
            case Listed(items):
                pending += items
    return found
