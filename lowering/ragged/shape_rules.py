"""Rules of operators that rearrange dimensions: the valid elements stay a prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from .elementwise_rules import each_alike, is_ragged_number
from .indexing_rules import taken
from .sizes import SizeExpr, are_equal, evaluate, in_python, is_ragged
from .value import Batch, Call, NoRule, Results, Value, in_dim, normalized, shifted, unsqueezed

_SAMPLES = (1009, 2003)
"""Timesteps to order sizes by: far above the constant sizes of a model."""


def view(batch: Batch, call: Call) -> Results:
    """Reshape; where a ragged dimension is merged with outer ones, elements change their places."""
    value, (sizes,) = call.value(), call.sizes
    groups = _groups(value.sizes, sizes)
    if not all(_keeps_prefix(before, after) for before, after in groups):
        tensor = reshaped(batch, batch.every_row(value), groups)
        return call.result(tensor.reshape(batch.rows, *batch.padded_sizes(sizes)))
    rows = [] if value.shared else [batch.rows]
    return replace(value, tensor=value.tensor.reshape(*rows, *batch.padded_sizes(sizes)), sizes=sizes)


def _groups(before: Sequence[SizeExpr], after: Sequence[SizeExpr]) -> list[tuple[list[SizeExpr], list[SizeExpr]]]:
    """Divide the dimensions of two shapes of one tensor into the smallest groups of equal products."""
    groups: list[tuple[list[SizeExpr], list[SizeExpr]]] = []
    left, right = [s for s in before if s != 1], [s for s in after if s != 1]
    while left or right:
        own: list[SizeExpr] = [left.pop(0)] if left else []
        new: list[SizeExpr] = [right.pop(0)] if right else []
        while _approximate(own) != _approximate(new) or not are_equal(sympy.prod(own), sympy.prod(new)):
            smaller, rest = (own, left) if _approximate(own) < _approximate(new) else (new, right)
            if not rest:
                raise NoRule(f"a reshape from {list(before)} to {list(after)}")
            smaller.append(rest.pop(0))
        groups.append((own, new))
    return groups


def _approximate(sizes: Sequence[SizeExpr]) -> tuple[int, ...]:
    return tuple(int(evaluate(sympy.prod(sizes), timesteps)) for timesteps in _SAMPLES)


def _keeps_prefix(before: Sequence[SizeExpr], after: Sequence[SizeExpr]) -> bool:
    """Whether the elements of every row keep their places in the padded tensor."""
    if list(before) == list(after) or not any(map(is_ragged, [*before, *after])):
        return True
    return all(is_ragged(sizes[0]) and not any(map(is_ragged, sizes[1:])) for sizes in (before, after))


def permuted(batch: Batch, call: Call) -> Results:
    """Transpose or permute dimensions."""
    value = call.value()
    places = [normalized(dim, value.rank) for dim in call.get("dims", range(value.rank))]
    if "dims" not in call.arguments and value.rank > 1:
        first, second = (normalized(call.get(name, dim), value.rank) for dim, name in enumerate(("dim0", "dim1")))
        places[first], places[second] = second, first
    tensor = value.tensor.permute(places) if value.shared else value.tensor.permute(0, *shifted(places))
    return replace(value, tensor=tensor, sizes=tuple(value.sizes[place] for place in places))


def unsqueeze(batch: Batch, call: Call) -> Results:
    """Insert a dimension of size 1."""
    return replace(call.value(), tensor=call.after_rows(), sizes=call.sizes[0])


def squeeze(batch: Batch, call: Call) -> Results:
    """Remove dimensions of size 1."""
    value = call.value()
    dims = () if call.get("dim") == [] else call.dims
    gone = [dim for dim in dims if value.sizes[dim : dim + 1] == (1,)]  # a number has no dimensions
    tensor = value.tensor
    for dim in reversed(gone):
        tensor = tensor.squeeze(dim if value.shared else dim + 1)
    return replace(value, tensor=tensor, sizes=call.sizes[0])


def expand(batch: Batch, call: Call) -> Results:
    """Broadcast dimensions of size 1."""
    value, (sizes,) = call.value(), call.sizes
    tensor = unsqueezed(value.tensor, len(sizes) - value.rank, 0 if value.shared else 1)
    rows = [] if value.shared else [batch.rows]
    return replace(value, tensor=tensor.expand(*rows, *batch.padded_sizes(sizes)), sizes=sizes, zero_beyond=False)


def repeat(batch: Batch, call: Call) -> Results:
    """Repeat along dimensions; timesteps follow at each row's own end."""
    value, (sizes,) = call.value(), call.sizes
    added = len(sizes) - value.rank
    given = call.get("repeats", call.get("dims"))
    repeats = [1] * (len(sizes) - len(given)) + list(given)
    for dim, (size, count) in enumerate(zip(value.sizes, repeats[added:], strict=True)):
        if is_ragged(size) and count != 1:
            parts = [batch.every_row(value)] * int(count)
            longer = [*value.sizes[:dim], size * int(count), *value.sizes[dim + 1 :]]
            value = Value(_cat_ragged(batch, parts, [size] * int(count), dim + 1), tuple(longer))
            repeats[added + dim] = 1
    tensor = unsqueezed(value.tensor, added, 0 if value.shared else 1)
    counts = [batch.padded(sympy.sympify(count)) for count in repeats]
    return replace(value, tensor=tensor.repeat(*([] if value.shared else [1]), *counts), sizes=sizes, zero_beyond=False)


def cat(batch: Batch, call: Call) -> Results:
    """Concatenate; after a ragged part the next one follows at each row's own end."""
    values: list[Value] = [value for value in call["tensors"] if value.sizes != (0,)]
    rank = values[0].rank
    dim = normalized(call["dim"], rank)
    in_turn = any(is_ragged(value.sizes[dim]) for value in values[:-1])
    if call.shared and not in_turn:
        return Value(torch.cat([value.tensor for value in values], dim), call.sizes[0], shared=True)
    tensors = [batch.every_row(value) for value in values]
    if not in_turn:
        zero = all(value.zero_beyond or not value.ragged_dims for value in values)
        return call.result(torch.cat(tensors, dim + 1), zero_beyond=zero)
    return call.result(_cat_ragged(batch, tensors, [value.sizes[dim] for value in values], dim + 1))


def _cat_ragged(batch: Batch, tensors: Sequence[torch.Tensor], sizes: Sequence[SizeExpr], dim: int) -> torch.Tensor:
    """Join parts: in each row, a part begins where the one before it ends."""
    parts = [(tensor, size) for tensor, size in zip(tensors, sizes, strict=True) if size != 0]
    joined, total = parts[0]
    for tensor, size in parts[1:]:
        first = batch.own(total).unsqueeze(1)
        positions = torch.arange(batch.padded(total + size)).unsqueeze(0)
        within = positions < first
        before = taken(joined, dim, positions.expand(within.shape).clamp(max=batch.padded(total) - 1))
        after = taken(tensor, dim, (positions - first).clamp(min=0).clamp(max=batch.padded(size) - 1))
        joined = torch.where(in_dim(within, dim, joined.dim()), before, after)
        total = total + size
    return joined


def stack(batch: Batch, call: Call) -> Results:
    """Stack along a new dimension."""
    values: list[Value] = list(call["tensors"])
    dim = normalized(call["dim"], values[0].rank + 1)
    shared = call.shared
    tensors = [value.tensor if shared else batch.every_row(value) for value in values]
    return Value(torch.stack(tensors, dim if shared else dim + 1), call.sizes[0], shared)


def pad(batch: Batch, call: Call) -> Results:
    """Pad with a constant: after the last timestep it follows at each row's own end."""
    value = call.value()
    amounts: list[Any] = list(call["pad"])
    if call.get("mode", "constant") != "constant" or any(map(is_ragged_number, amounts[::2])):
        return _padded_by_position(batch, call, amounts)
    fill = call.get("value") or 0
    dims = [value.rank - 1 - index for index in range(len(amounts) // 2)]
    ends = [dim for dim, after in zip(dims, amounts[1::2], strict=True) if is_ragged(value.sizes[dim]) and after != 0]
    tensor = batch.masked(value, ends, fill) if ends else value.tensor
    widths = [batch.padded(sympy.sympify(amount)) for amount in amounts]
    padded = torch.nn.functional.pad(tensor, widths, "constant", fill)
    return Value(padded, call.sizes[0], value.shared and not ends)


def _padded_by_position(batch: Batch, call: Call, amounts: Sequence[Any]) -> Results:
    """Pad so that each new position reads one of the row's own, or has a constant."""
    value, mode = call.value(), call.get("mode", "constant")
    tensor, sizes = batch.every_row(value), list(value.sizes)
    for index in range(len(amounts) // 2):
        dim, (before, after) = value.rank - 1 - index, amounts[2 * index : 2 * index + 2]
        if (before, after) == (0, 0):
            continue
        size = sizes[dim]
        new = size + before + after
        last = batch.own(size).unsqueeze(1) - 1 if is_ragged(size) else torch.full((1, 1), int(size) - 1)
        first = batch.number(before).unsqueeze(1) if is_ragged_number(before) else in_python(before)
        positions = torch.arange(batch.padded(new)).unsqueeze(0) - first
        is_read = in_dim((positions >= 0) & (positions <= last), dim + 1, tensor.dim())
        if mode == "reflect":
            positions = positions.abs()
            positions = torch.where(positions > last, 2 * last - positions, positions)
        elif mode == "circular":
            positions = torch.remainder(positions, last + 1)
        elif mode not in ("replicate", "constant"):
            raise NoRule(f"padding by {mode}")
        positions = torch.minimum(positions.clamp(min=0), last).clamp(min=0)
        tensor = taken(tensor, dim + 1, positions.expand(tensor.shape[0], -1))
        tensor = torch.where(is_read, tensor, call.get("value") or 0) if mode == "constant" else tensor
        sizes[dim] = new
    return call.result(tensor)


def diagonal(batch: Batch, call: Call) -> Results:
    """Read the diagonal of two dimensions. Raises `NoRule`: which one depends on the timesteps."""
    if is_ragged_number(call["offset"]):
        raise NoRule("a diagonal that depends on the timesteps")
    return each_alike(batch, call)


_Groups = Sequence[tuple[Sequence[SizeExpr], Sequence[SizeExpr]]]
"""Neighbouring dimensions before and after a reshape, in order; those of size 1 are left out."""


def reshaped(batch: Batch, tensor: torch.Tensor, groups: _Groups) -> torch.Tensor:
    """Reshape a tensor with rows, [B, ...], from the sizes of the groups to those after them."""
    tensor = tensor.reshape(batch.rows, *(batch.padded(sympy.prod(before)) for before, _ in groups))
    for index, (before, after) in enumerate(groups):
        if list(before) != list(after):
            own = unraveled(batch, after, torch.arange(batch.padded(sympy.prod(after))).unsqueeze(0))
            tensor = taken(tensor, index + 1, _raveled(batch, before, own))
    return tensor


def unraveled(batch: Batch, sizes: Sequence[SizeExpr], places: torch.Tensor) -> torch.Tensor:
    """Return the places in each row's own tensor, [B, N], of places in the padded one."""
    own, stride = torch.zeros_like(places), torch.ones_like(batch.lengths).unsqueeze(1)
    for size in reversed(sizes):
        padded = batch.padded(size)
        own = own + (places % padded) * stride
        places, stride = places // padded, stride * _own(batch, size)
    return own


def _raveled(batch: Batch, sizes: Sequence[SizeExpr], own: torch.Tensor) -> torch.Tensor:
    """Map flat positions in each row's unpadded tensor to those in the padded one, [B, N]; past its end, to any."""
    places, stride = torch.zeros_like(own), 1
    for size in reversed(sizes):
        places = places + (own % _own(batch, size)) * stride
        own, stride = own // _own(batch, size), stride * batch.padded(size)
    return places


def _own(batch: Batch, size: SizeExpr) -> torch.Tensor:
    """Return a size of each row's own tensor, 1 or more, [B, 1] or [1, 1]."""
    own = batch.own(size) if is_ragged(size) else batch.lengths.new_full((1,), int(size))
    return own.clamp(min=1).unsqueeze(1)
