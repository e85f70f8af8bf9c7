"""Calls of all members of a family at once, over tensors with a leading dimension of members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...backends.recurrent_operators import is_recurrent
from ..errors import UnknownLoop, at_line
from ..exported_graph import named_arguments
from ..ragged.value import after_rows, unsqueezed
from .recipe import Stacked, Unit

_aten = torch.ops.aten


def joined_members(unit: Unit, args: Sequence[Any]) -> torch.Tensor | None:
    """Return stack() or cat() of a list with members of families; None for any other call.

    Raises `UnknownLoop`: another operator takes such a list; names the line.
    """
    if not args or not isinstance(args[0], list) or not any(isinstance(item, Stacked) for item in args[0]):
        return None
    dim = args[1] if len(args) > 1 else 0
    if unit.target is _aten.stack.default:
        parts = [item.tensor if isinstance(item, Stacked) else item.unsqueeze(0) for item in args[0]]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.movedim(0, dim)
    if unit.target is _aten.cat.default:
        parts = [in_a_row(item.tensor, dim) if isinstance(item, Stacked) else item for item in args[0]]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
    raise UnknownLoop(f"{unit.target} takes a list of timesteps{at_line(unit.node)}")


def in_a_row(members: torch.Tensor, dim: int) -> torch.Tensor:
    """Return members[n, ...] concatenated along a dimension of theirs."""
    dim = dim % (members.dim() - 1)
    return members.movedim(0, dim).flatten(dim, dim + 1)


_ANY_LEADING = {_aten.linear.default, _aten.layer_norm.default, _aten.rms_norm.default}
"""Operators over the last dimensions of their first argument."""
_OVER_ROWS = {
    *(_aten.conv1d.default, _aten.conv2d.default, _aten.batch_norm.default, _aten.group_norm.default),
    *(_aten.instance_norm.default, _aten.max_pool2d.default, _aten.avg_pool1d.default),
    _aten._native_batch_norm_legit_no_training.default,
}
"""Operators, in eval mode, over each row of their first argument by itself."""
_OVER_DIMS = {
    *(_aten.cat.default, _aten.stack.default, _aten.transpose.int, _aten.unsqueeze.default, _aten.squeeze.dim),
    *(_aten.chunk.default, _aten.split.Tensor, _aten.split_with_sizes.default, _aten.unbind.int),
    *(_aten.select.int, _aten.slice.Tensor, _aten.narrow.default),
    *(_aten.softmax.int, _aten.log_softmax.int, _aten.sum.dim_IntList, _aten.mean.dim),
}
"""Operators whose arguments `dim`, `dim0` and `dim1` count the dimensions of their tensors.

torch.vmap would make plain numbers of some of their symbolic sizes.
"""


def call_for_all(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], count: Any) -> Any:
    """Call an operator for `count` members, one in each `Stacked` argument; results have a dimension of them first."""
    given = named_arguments(target, args, kwargs)
    stacked = [value for value in pytree.tree_leaves(given) if isinstance(value, Stacked)]
    if not stacked:
        once = target(*args, **kwargs)
        return pytree.tree_map(lambda t: t.unsqueeze(0).expand(count, *t.shape), once)
    if torch.Tag.pointwise in target.tags:
        rank = max(_rank(value) for value in pytree.tree_leaves(given) if isinstance(value, (Stacked, torch.Tensor)))
        return _called(target, pytree.tree_map(lambda value: _aligned(value, rank), given))
    if target in _OVER_DIMS and not any(isinstance(value, torch.Tensor) for value in pytree.tree_leaves(given)):
        return _called(target, pytree.tree_map(_unwrapped, _shifted(given, _rank(stacked[0]))))
    if target in _ANY_LEADING and isinstance(args[0], Stacked) and len(stacked) == 1:
        return _called(target, pytree.tree_map(_unwrapped, given))
    if target in _OVER_ROWS and isinstance(args[0], Stacked) and len(stacked) == 1:
        return _over_rows(target, given, args[0].tensor)
    return _recurrence(target, given, count) if is_recurrent(target) else _vmapped(target, given)


def _called(target: Any, given: Mapping[str, Any]) -> Any:
    schema = target._schema.arguments
    positional = [given[a.name] for a in schema if not a.kwarg_only]
    return target(*positional, **{a.name: given[a.name] for a in schema if a.kwarg_only})


def _rank(value: Stacked | torch.Tensor) -> int:
    """Number of dimensions of one member."""
    return value.tensor.dim() - 1 if isinstance(value, Stacked) else value.dim()


def _unwrapped(value: Any) -> Any:
    return value.tensor if isinstance(value, Stacked) else value


def _aligned(value: Any, rank: int) -> Any:
    """Give the members of a tensor `rank` dimensions, as broadcasting would."""
    return unsqueezed(value.tensor, rank - _rank(value)) if isinstance(value, Stacked) else value


def _shifted(given: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Count dimensions after that of the members."""
    dims = {name: after_rows(value) for name, value in given.items() if name.startswith("dim")}
    every = {"dim": list(range(1, rank + 1))} if "dim" in dims and dims["dim"] in (None, []) else {}
    return {**given, **dims, **every}


def _over_rows(target: Any, given: Mapping[str, Any], members: torch.Tensor) -> Any:
    """Call an operator whose rows are those of all members, [count, N, ...]."""
    first = next(name for name, value in given.items() if isinstance(value, Stacked))
    results = _called(target, {**given, first: members.flatten(0, 1)})
    rows = members.shape[:2]  # a batch normalisation in eval mode has further results of no elements
    return pytree.tree_map(lambda t: t.reshape(*rows, *t.shape[1:]) if t.dim() > 1 else t, results)


def _recurrence(target: Any, given: Mapping[str, Any], count: Any) -> Any:
    """Call a recurrent layer over a sequence of each member: its rows are those of all members."""
    if any(isinstance(weight, Stacked) for weight in given["weights"]):
        raise UnknownLoop("a recurrent layer is called with other weights at every timestep")
    rows = {name: _of_each(given[name], count).flatten(0, 1) for name in ("x", "lengths") if given[name] is not None}
    of_states = [name for name in ("h_0", "c_0") if name in given]
    states = {name: _of_each(given[name], count).movedim(0, 1).flatten(1, 2) for name in of_states}
    y, *last = _called(target, {**given, **rows, **states})
    own = _of_each(given["x"], count).shape[:2]
    return y.reshape(*own, *y.shape[1:]), *(s.reshape(s.shape[0], *own, s.shape[2]).movedim(1, 0) for s in last)


def _of_each(value: Any, count: Any) -> torch.Tensor:
    """Return the values of all members, [count, ...]."""
    return value.tensor if isinstance(value, Stacked) else value.unsqueeze(0).expand(count, *value.shape)


def _vmapped(target: Any, given: Mapping[str, Any]) -> Any:
    dims = pytree.tree_map(lambda value: 0 if isinstance(value, Stacked) else None, given)
    return torch.vmap(partial(_called, target), (dims,))(pytree.tree_map(_unwrapped, given))
