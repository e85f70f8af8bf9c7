"""Rules of operators that read by position: a position counted from the end is each row's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from .sizes import SizeExpr, is_ragged
from .value import (
    Batch,
    Call,
    NoRule,
    Results,
    Value,
    in_dim,
    normalized,
    normalized_dims,
    unsqueezed,
    with_ones,
    without_ones,
)


def taken(tensor: torch.Tensor, dim: int, positions: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor with rows at positions[B, N] of a dimension."""
    sizes = list(tensor.shape)
    sizes[dim] = positions.shape[1]
    return tensor.gather(dim, in_dim(positions, dim, tensor.dim()).expand(sizes))


def _plain_number(value: object) -> int | None:
    """Return a position that is the same for every row, counted from the front; None for another one."""
    if isinstance(value, sympy.Expr):
        value = int(value) if value.is_Integer else None
    return value if isinstance(value, int) and value >= 0 else None


def _own_position(batch: Batch, position: Any, size: SizeExpr) -> torch.Tensor:
    """Return a position for each row, [B]; a negative one counts from the row's own end."""
    position = sympy.sympify(position)
    if position.is_Integer:
        return batch.own(size + position) if position < 0 else torch.full_like(batch.lengths, int(position))
    return batch.own(position)


def select(batch: Batch, call: Call) -> Results:
    """Read one position. Raises `NoRule`: the position is computed from data."""
    value = call.value()
    dim = normalized(call["dim"], value.rank)
    position = call["index"]
    if isinstance(position, Value):
        raise NoRule("a position that is computed from data")
    number = sympy.sympify(position)
    if number.is_Integer and (number >= 0 or not is_ragged(value.sizes[dim])):
        tensor = value.tensor.select(dim if value.shared else dim + 1, int(number))
        return replace(value, tensor=tensor, sizes=call.sizes[0])
    own = _own_position(batch, position, value.sizes[dim])
    own = own if number.is_Integer else own.clamp(min=0)
    return call.result(taken(batch.every_row(value), dim + 1, own.unsqueeze(1)).squeeze(dim + 1))


def slice_(batch: Batch, call: Call) -> Results:
    """Read a range of positions."""
    if call.target is torch.ops.aten.narrow.default:
        start = call["start"]
        arguments = {name: call[name] for name in ("self", "dim", "start")}
        arguments |= {"end": start + call["length"], "step": 1}
        call = replace(call, target=torch.ops.aten.slice.Tensor, arguments=arguments)
    value, (sizes,) = call.value(), call.sizes
    dim, start, end, step = normalized(call["dim"], value.rank), call["start"] or 0, call["end"], call["step"] or 1
    axis = dim if value.shared else dim + 1
    if sizes == value.sizes and step == 1:
        return value
    if not is_ragged(value.sizes[dim]):
        if is_ragged(sizes[dim]):
            return _slice_to_own_size(batch, call, dim)
        if not sympy.sympify(start).is_Integer:
            own = batch.own(start).unsqueeze(1) + torch.arange(batch.padded(sizes[dim])) * step
            return call.result(taken(batch.every_row(value), dim + 1, own))
        return replace(value, tensor=call.target(value.tensor, axis, start, end, step), sizes=sizes)
    first = _plain_number(start)
    count = batch.padded(sizes[dim])
    if first is None:
        own = _own_position(batch, start, value.sizes[dim]).unsqueeze(1)
        if (start, sizes[dim]) != (-1, 1):  # the last position is read as `select` does
            last = batch.padded(value.sizes[dim]) - 1
            own = (own.clamp(min=0) + torch.arange(count) * step).clamp(max=last)
        return call.result(taken(batch.every_row(value), dim + 1, own))
    to_end = end is None or end == sys.maxsize
    tensor = value.tensor
    if not to_end:
        tensor = tensor.narrow(axis, first, (count - 1) * step + 1)
        first = 0
    if first or step != 1:
        tensor = tensor[(slice(None),) * axis + (slice(first, None, step),)]
    return replace(value, tensor=tensor, sizes=sizes, zero_beyond=value.zero_beyond and to_end)


def _slice_to_own_size(batch: Batch, call: Call, dim: int) -> Results:
    """Cut a constant table, such as positional encodings, to the timesteps."""
    value, (sizes,) = call.value(), call.sizes
    first = _plain_number(call["start"] or 0)
    if first is None or (call["step"] or 1) != 1:
        raise NoRule("a part of a constant tensor that begins at a position computed from the timesteps")
    tensor = value.tensor.narrow(dim if value.shared else dim + 1, first, batch.padded(sizes[dim]))
    return replace(value, tensor=tensor, sizes=sizes)


def slice_scatter(batch: Batch, call: Call) -> Results:
    """Write a range of positions, which begins at the same one in every row.

    Raises:
        NoRule: the place of the write, or its step, depends on the timesteps.
    """
    value, source = call.value(), call.value("src")
    dim = normalized(call["dim"], value.rank)
    if source.sizes[dim] == 0:
        return value
    if call["step"] not in (None, 1):
        raise NoRule("a write to timesteps with a step other than 1")
    first = _plain_number(call["start"] or 0)
    if first is None:
        raise NoRule("a write that begins at a position computed from the timesteps")
    target, new = batch.every_row(value), batch.every_row(source)
    if is_ragged(value.sizes[dim]) and not is_ragged(source.sizes[dim]) and call["end"] in (None, sys.maxsize):
        raise NoRule("a write to the end of the timesteps")
    if is_ragged(source.sizes[dim]) and not sympy.simplify(source.sizes[dim] + first - value.sizes[dim]) == 0:
        raise NoRule("a write that ends at a position computed from the timesteps")
    return call.result(torch.slice_scatter(target, new, dim + 1, first, first + new.shape[dim + 1]))


def select_scatter(batch: Batch, call: Call) -> Results:
    """Write one position."""
    value, source = call.value(), call.value("src")
    dim, position = normalized(call["dim"], value.rank), call["index"]
    target, new = batch.every_row(value), batch.every_row(source).unsqueeze(dim + 1)
    if not is_ragged(value.sizes[dim]) or _plain_number(position) is not None:
        return call.result(torch.select_scatter(target, new.squeeze(dim + 1), dim + 1, int(position)))
    own = _own_position(batch, position, value.sizes[dim]).unsqueeze(1)
    here = torch.arange(target.shape[dim + 1]).unsqueeze(0) == own
    return call.result(torch.where(in_dim(here, dim + 1, target.dim()), new, target))


def gather(batch: Batch, call: Call) -> Results:
    """Read by an index of each element, which is made valid beyond a row's own sizes."""
    value, index = call.value(), call.value("index")
    dim = normalized(call["dim"], value.rank)
    positions = batch.masked(index, index.ragged_dims, 0).expand(batch.rows, *batch.padded_sizes(index.sizes))
    return call.result(batch.every_row(value).gather(dim + 1, positions))


def index_select(batch: Batch, call: Call) -> Results:
    """Read by a list of positions."""
    value, index = call.value(), call.value("index")
    dim = normalized(call["dim"], value.rank)
    if value.sizes[dim] == 1 and call.sizes[0] == value.sizes:
        return value
    if index.shared:
        tensor = value.tensor.index_select(dim if value.shared else dim + 1, index.tensor)
        return replace(value, tensor=tensor, sizes=call.sizes[0], zero_beyond=False)
    positions = batch.masked(index, index.ragged_dims, 0)
    return call.result(taken(batch.every_row(value), dim + 1, positions))


def index(batch: Batch, call: Call) -> Results:
    """Read by tensors of positions of neighbouring dimensions.

    Raises:
        NoRule: the selection is by a mask, or of dimensions that are not neighbours.
    """
    value: Value = call.value()
    given: list[Value | None] = list(call["indices"])
    only_rows = all(i is None or (i.sizes in ((1,), ()) and value.sizes[d] == 1) for d, i in enumerate(given))
    if only_rows and call.sizes[0] == value.sizes:
        return value
    places = [dim for dim, i in enumerate(given) if i is not None]
    indices = [i for i in given if i is not None]
    if any(i.tensor.dtype is torch.bool for i in indices):
        raise NoRule("a selection by a mask, whose size depends on data")
    if places != list(range(places[0], places[-1] + 1)):
        raise NoRule("an index of dimensions that are not neighbours")
    if (of_one := _index_of_one_dim(batch, call, value, places, indices)) is not None:
        return of_one
    rank = max(i.rank for i in indices)
    tensor = batch.every_row(value).movedim([p + 1 for p in places], list(range(1, 1 + len(places))))
    rows = torch.arange(tensor.shape[0]).reshape(-1, *[1] * rank)
    own = [unsqueezed(batch.masked(i, i.ragged_dims, 0), rank - i.rank) for i in indices]
    keys = (rows, *(_from_own_end(batch, i, value.sizes[place]) for place, i in zip(places, own, strict=True)))
    found = tensor[keys]
    first = places[0]
    if first:
        found = found.movedim(list(range(1, 1 + rank)), list(range(first + 1, first + 1 + rank)))
    return call.result(found)


def _index_of_one_dim(
    batch: Batch, call: Call, value: Value, places: Sequence[int], indices: Sequence[Value]
) -> Value | None:
    """Read `y[arange(1), steps]`, whose first dimension has size 1, as positions of the other one."""
    others = [place for place in places if value.sizes[place] == 1]
    if len(others) != len(places) - 1 or any(index.sizes != (1,) for index in indices):
        return None
    (dim,) = set(places).difference(others)
    own = batch.masked(indices[places.index(dim)], [], 0)
    read = taken(batch.every_row(value), dim + 1, _from_own_end(batch, own, value.sizes[dim]))
    for place in reversed(places[1:]):
        read = read.squeeze(place + 1)
    return call.result(read)


def _from_own_end(batch: Batch, positions: torch.Tensor, size: SizeExpr) -> torch.Tensor:
    """Count negative positions [B or 1, ...] from each row's own end."""
    if not is_ragged(size):
        return positions
    own = batch.own(size).reshape(-1, *[1] * (positions.dim() - 1))
    return torch.where(positions < 0, positions + own, positions)


def scatter(batch: Batch, call: Call) -> Results:
    """Write at positions of one dimension, as one-hot encodings do.

    Raises:
        NoRule: the timesteps to write are computed.
    """
    value, index, source = call.value(), call.value("index"), call.get("src")
    dim = normalized(call["dim"], value.rank)
    if is_ragged(value.sizes[dim]) or is_ragged(index.sizes[dim]) or call.get("reduce") is not None:
        raise NoRule("a write at timesteps that are computed")
    target, positions = batch.every_row(value), batch.masked(index, index.ragged_dims, 0)
    positions = positions.expand(batch.rows, *positions.shape[1:])
    written = call["value"] if source is None else batch.every_row(source)
    return call.result(target.scatter(dim + 1, positions, written))


def index_put(batch: Batch, call: Call) -> Results:
    """Write a number where a mask is true. Raises `NoRule`: the positions to write are computed."""
    value, indices, number = call.value(), call["indices"], call.value("values")
    mask = indices[0] if len(indices) == 1 else None
    if mask is None or mask.tensor.dtype is not torch.bool or number.rank or call["accumulate"]:
        raise NoRule("a write at positions that are computed")
    where = batch.every_row(mask)
    where = where.reshape(*where.shape, *[1] * (value.rank - mask.rank))
    numbers = batch.every_row(number).reshape(-1, *[1] * value.rank)
    return call.result(torch.where(where, numbers, batch.every_row(value)))


def embedding(batch: Batch, call: Call) -> Results:
    """Look up rows of a table that all requests share. Raises `NoRule`: the table is computed for each request."""
    weight, ids = call.value("weight"), call.value("indices")
    if not weight.shared:
        raise NoRule("a table of embeddings that is computed for each request")
    rows, ones = without_ones(ids, 0)
    read = torch.nn.functional.embedding(rows.tensor, weight.tensor)
    return Value(with_ones(read, ones, shared=ids.shared), call.sizes[0], ids.shared)


def flip(batch: Batch, call: Call) -> Results:
    """Reverse dimensions, each row within its own size."""
    value = call.value()
    tensor, shared = value.tensor, value.shared
    for dim in normalized_dims(call["dims"], value.rank):
        size = value.sizes[dim]
        if is_ragged(size):
            tensor, shared = (batch.every_row(replace(value, tensor=tensor)), False) if shared else (tensor, shared)
            positions = (batch.own(size).unsqueeze(1) - 1 - batch.positions(size)).clamp(min=0)
            tensor = taken(tensor, dim + 1, positions)
        else:
            tensor = tensor.flip(dim if shared else dim + 1)
    return Value(tensor, value.sizes, shared)


def roll(batch: Batch, call: Call) -> Results:
    """Shift around, each row within its own size."""
    value = call.value()
    tensor = batch.every_row(value)
    for dim, shift in zip(call["dims"], call["shifts"], strict=True):
        size = value.sizes[normalized(dim, value.rank)]
        axis = normalized(dim, value.rank) + 1
        if not is_ragged(size):
            tensor = tensor.roll(int(shift), axis)
        else:
            own = batch.own(size).unsqueeze(1)
            tensor = taken(tensor, axis, torch.remainder(batch.positions(size) - int(shift), own))
    return call.result(tensor)


def split(batch: Batch, call: Call) -> Results:
    """Divide a dimension; the parts of timesteps begin at each row's own sums of sizes."""
    value = call.value()
    dim = normalized(call["dim"], value.rank)
    results, start = [], sympy.Integer(0)
    for sizes in call.sizes:
        size = sizes[dim]
        results.append(_part(batch, value, dim, start, size))
        start = start + size
    return tuple(replace(part, sizes=sizes) for part, sizes in zip(results, call.sizes, strict=True))


def _part(batch: Batch, value: Value, dim: int, start: SizeExpr, size: SizeExpr) -> Value:
    axis = dim if value.shared else dim + 1
    if not is_ragged(start):
        return replace(value, tensor=value.tensor.narrow(axis, int(start), batch.padded(size)), zero_beyond=False)
    positions = batch.own(start).unsqueeze(1) + torch.arange(batch.padded(size))
    last = batch.padded(value.sizes[dim]) - 1
    return Value(taken(batch.every_row(value), dim + 1, positions.clamp(max=last)), value.sizes)


def unbind(batch: Batch, call: Call) -> Results:
    """Take a dimension apart that is not ragged. Raises `NoRule`: the results are the timesteps."""
    value = call.value()
    dim = normalized(call["dim"], value.rank)
    if is_ragged(value.sizes[dim]):
        raise NoRule("a loop over timesteps")
    parts = value.tensor.unbind(dim if value.shared else dim + 1)
    return tuple(replace(value, tensor=part, sizes=sizes) for part, sizes in zip(parts, call.sizes, strict=True))


def sort(batch: Batch, call: Call) -> Results:
    """Sort, or take the largest. No index is that of padding, also where an element has the value of padding."""
    value = call.value()
    dim = normalized(call["dim"], value.rank)
    if is_ragged(value.sizes[dim]):
        tensors, shared = _sort_ragged_dim(batch, call, value, dim), False
    else:
        number = {"k": _number(batch, call)} if "k" in call.arguments else {}
        results = call.run(self=batch.rows_of(value), dim=dim + 1, **number)
        tensors, shared = results, value.shared
    return call.results(tensors, shared=shared)


def _number(batch: Batch, call: Call) -> Any:
    return batch.padded(sympy.sympify(call["k"]))


def _sort_ragged_dim(batch: Batch, call: Call, value: Value, dim: int) -> list[torch.Tensor]:
    """Return the results of a call that sorts a dimension of which each row has its own size."""
    name, kind = call.target._schema.name, value.tensor.dtype
    descending = bool(call.get("largest", call.get("descending", False)))
    tensor = batch.masked(value, [dim], _last(kind, descending=descending))
    # ONNX has no stable sort, so that only a model's own call is one.
    options: dict[str, Any] = {"stable": True} if call.get("stable") else {}
    values, order = torch.sort(tensor, dim=dim + 1, descending=descending, **options)
    last = _padding_last(batch, value, dim, order)
    order = order.gather(dim + 1, last)
    if kind.is_floating_point and not descending:  # NaN comes after the infinity that fills the padding
        values = values.gather(dim + 1, last)
    elif name == "aten::topk":  # it needs no sort where its indices are not used
        values = call.run(self=tensor, dim=dim + 1, k=_number(batch, call), sorted=True)[0]
    if name == "aten::topk":
        values, order = (result.narrow(dim + 1, 0, _number(batch, call)) for result in (values, order))
    return [order] if name == "aten::argsort" else [values, order]


def _last(kind: torch.dtype, *, descending: bool) -> float:
    """Return a value that is sorted after all others, except that NaN comes after infinity."""
    if kind.is_floating_point:
        return float("-inf") if descending else float("inf")
    if kind is torch.bool:
        return not descending
    return torch.iinfo(kind).min if descending else torch.iinfo(kind).max


def _padding_last(batch: Batch, value: Value, dim: int, order: torch.Tensor) -> torch.Tensor:
    """Return the places that the elements of an order have if padding is moved behind all others.

    The others stay in their order. The sorted numbers all differ, so that the sort need not be stable.
    """
    size = value.sizes[dim]
    own = batch.own(size).reshape(-1, *[1] * value.rank)
    places = batch.positions(size).reshape(-1, *[1] * (value.rank - 1 - dim))
    return torch.sort(torch.where(order < own, places, places + batch.padded(size)), dim=dim + 1)[1]
