"""Moves of dimensions in a graph of ragged batches, one after the other: as few calls as have their result.

Every rule puts the rows first and keeps the dimension of size 1 that is the batch of one request. Most of these moves
undo each other, and an engine recognises the layers between them only if they are gone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..exported_graph import rank

_aten = torch.ops.aten
_MOVES = {
    *(_aten.unsqueeze.default, _aten.squeeze.dim, _aten.select.int),
    *(_aten.transpose.int, _aten.permute.default, _aten.movedim.int),
}
Places = list[int | None]
"""Dimensions of a tensor as those of another one; None: a new one of size 1."""
Selected = dict[int, int]
"""The index that is read of a dimension of the other tensor."""


def join_moves(program: torch.export.ExportedProgram) -> None:
    """Replace chains of moves whose result needs fewer calls."""
    chains: dict[Node, tuple[Node, Places, Selected, int]] = {}
    with program.graph_module._set_replace_hook(program.graph_signature.get_replace_hook()):
        for node in list(program.graph.nodes):
            if not _is_move(node):
                continue
            source: Any = node.args[0]
            root, places, selected, length = chains.get(source, (source, list(range(rank(source))), {}, 0))
            chains[node] = root, *_moved(node, places, selected), length + 1
            if not all(map(_is_move, node.users)):
                _replace(node, *chains[node])
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _is_move(node: Node) -> bool:
    if node.op != "call_function" or node.target not in _MOVES:
        return False
    return node.target is not _aten.select.int or isinstance(node.args[2], int)


def _moved(node: Node, places: Places, selected: Selected) -> tuple[Places, Selected]:
    """Return the places of a call's result and what is selected, from those of its argument."""
    moved, target = list(places), node.target
    arguments: Any = node.args[1:]
    if target is _aten.unsqueeze.default:
        moved.insert(arguments[0] % (len(places) + 1), None)
    elif target is _aten.squeeze.dim:
        if len(places) > rank(node):
            del moved[arguments[0] % len(places)]
    elif target is _aten.permute.default:
        moved = [places[dim] for dim in arguments[0]]
    elif target is _aten.select.int:
        place = moved.pop(arguments[0] % len(places))
        selected = selected if place is None else {**selected, place: arguments[1]}
    elif target is _aten.movedim.int:
        moved.insert(arguments[1] % len(places), moved.pop(arguments[0] % len(places)))
    else:
        first, second = (dim % len(places) for dim in arguments)
        moved[first], moved[second] = places[second], places[first]
    return moved, selected


def _replace(node: Node, root: Node, places: Places, selected: Selected, length: int) -> None:
    """Put the fewest calls in place of a chain, if they are fewer; an input itself is no output."""
    calls = _calls(places, rank(root), selected)
    is_output = any(user.op == "output" for user in node.users)
    if len(calls) >= length or (not calls and is_output and root.op == "placeholder"):
        return
    made = root
    with node.graph.inserting_before(node):
        for target, *arguments in calls:
            value = target(made.meta["val"], *arguments)
            made = node.graph.call_function(target, (made, *arguments))
            made.meta = {**node.meta, "val": value}
    node.replace_all_uses_with(made)


def _calls(places: Places, dimensions: int, selected: Selected) -> list[tuple[Any, ...]]:
    """Return the calls that move the dimensions of a tensor of so many to these places.

    >>> [(str(target), *arguments) for target, *arguments in _calls([1, 0, 2], 3, {})]
    [('aten.transpose.int', 0, 1)]
    >>> [(str(target), *arguments) for target, *arguments in _calls([2, None], 3, {0: -1})]
    [('aten.squeeze.dim', 1), ('aten.select.int', 0, -1), ('aten.unsqueeze.default', 1)]
    """
    kept = [place for place in places if place is not None]
    calls: list[tuple[Any, ...]] = [
        (_aten.select.int, dim, selected[dim]) if dim in selected else (_aten.squeeze.dim, dim)
        for dim in reversed(range(dimensions))
        if dim not in kept
    ]
    order = [sorted(kept).index(place) for place in kept]
    changed = [dim for dim, place in enumerate(order) if dim != place]
    if changed:
        calls.append((_aten.transpose.int, *changed) if len(changed) == 2 else (_aten.permute.default, order))
    return calls + [(_aten.unsqueeze.default, dim) for dim, place in enumerate(places) if place is None]
