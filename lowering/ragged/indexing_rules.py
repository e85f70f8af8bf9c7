"""Rules of operators that read or write by position: a position counted from the end is each row's own.

What a row writes beyond its own sizes is cut off.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from .sizes import SizeExpr, in_python, is_ragged
from .value import Batch, Call, NoRule, Results, Value, in_dim, unsqueezed, with_ones, without_ones


def taken(tensor: torch.Tensor, dim: int, positions: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor with rows at positions[B, N] of a dimension."""
    sizes = list(tensor.shape)
    sizes[dim] = positions.shape[1]
    return tensor.gather(dim, in_dim(positions, dim, tensor.dim()).expand(sizes))


def plain_number(value: object) -> int | None:
    """Return a position that is the same for every row, counted from the front; None for another one."""
    if isinstance(value, sympy.Expr):
        value = int(value) if value.is_Integer else None
    return value if isinstance(value, int) and value >= 0 else None


def own_position(batch: Batch, position: Any, size: SizeExpr) -> torch.Tensor:
    """Return a position for each row, [B]; a negative one counts from the row's own end."""
    position = sympy.sympify(position)
    if position.is_Integer:
        return batch.own(size + position) if position < 0 else torch.full_like(batch.lengths, int(position))
    return from_own_end(batch, batch.number(position), size)


def select(batch: Batch, call: Call) -> Results:
    """Read one position. Raises `NoRule`: the position is computed from data."""
    value, dim, position = call.value(), call.dim, call["index"]
    if isinstance(position, Value):
        raise NoRule("a position that is computed from data")
    number = sympy.sympify(position)
    if number.is_Integer and (number >= 0 or not is_ragged(value.sizes[dim])):
        tensor = value.tensor.select(dim if value.shared else dim + 1, int(number))
        return replace(value, tensor=tensor, sizes=call.sizes[0])
    own = own_position(batch, position, value.sizes[dim])
    own = own if number.is_Integer else own.clamp(min=0)
    return call.result(taken(batch.every_row(value), dim + 1, own.unsqueeze(1)).squeeze(dim + 1))


def slice_(batch: Batch, call: Call) -> Results:
    """Read a range of positions."""
    value, start, step = call.value(), call["start"] or 0, call.get("step") or 1
    # A narrow has a length; one from a negative start may end at 0, which is the end.
    end = (start + call["length"] or None) if "length" in call.arguments else call["end"]
    return _part(batch, value, call.dim, slice(start, end, step), call.sizes[0])


def _part(batch: Batch, value: Value, dim: int, part: slice, sizes: tuple[SizeExpr, ...]) -> Value:
    start, end, step = part.start, part.stop, part.step
    axis = dim if value.shared else dim + 1
    if sizes == value.sizes and step == 1:
        return value
    first, count = plain_number(start), batch.padded(sizes[dim])
    if is_ragged(value.sizes[dim]):
        if first is not None:
            return _from_front(value, sizes, axis, slice(first, end, step), count)
    elif not is_ragged(sizes[dim]) and sympy.sympify(start).is_Integer:
        tensor = torch.ops.aten.slice.Tensor(value.tensor, axis, int(start), None if end is None else int(end), step)
        return replace(value, tensor=tensor, sizes=sizes)
    elif first is not None and step == 1:  # a table, such as positional encodings, is cut to the timesteps
        return replace(value, tensor=value.tensor.narrow(axis, first, count), sizes=sizes)
    own = own_position(batch, start, value.sizes[dim]).unsqueeze(1)
    if (start, sizes[dim]) != (-1, 1):  # the last position is read as `select` does
        last = batch.padded(value.sizes[dim]) - 1
        own = (own.clamp(min=0) + torch.arange(count) * step).clamp(max=last)
    return Value(taken(batch.every_row(value), dim + 1, own), sizes)


def _from_front(value: Value, sizes: tuple[SizeExpr, ...], axis: int, part: slice, count: Any) -> Value:
    """Read timesteps that are the same for every row."""
    tensor, first, to_end = value.tensor, part.start, part.stop in (None, sys.maxsize)
    if not to_end:
        tensor, first = tensor.narrow(axis, first, (count - 1) * part.step + 1), 0
    if first or part.step != 1:
        tensor = tensor[(slice(None),) * axis + (slice(first, None, part.step),)]
    return replace(value, tensor=tensor, sizes=sizes, zero_beyond=value.zero_beyond and to_end)


def gather(batch: Batch, call: Call) -> Results:
    """Read by an index of each element, which is made valid beyond a row's own sizes."""
    value, index, dim = call.value(), call.value("index"), call.dim
    positions = batch.masked(index, index.ragged_dims, 0).expand(batch.rows, *batch.padded_sizes(index.sizes))
    return call.result(batch.every_row(value).gather(dim + 1, positions))


def index_select(batch: Batch, call: Call) -> Results:
    """Read by a list of positions."""
    value, index, dim = call.value(), call.value("index"), call.dim
    if value.sizes[dim] == 1 and call.sizes[0] == value.sizes:
        return value
    if index.shared:
        tensor = value.tensor.index_select(dim if value.shared else dim + 1, index.tensor)
        return replace(value, tensor=tensor, sizes=call.sizes[0], zero_beyond=False)
    positions = batch.masked(index, index.ragged_dims, 0)
    return call.result(taken(batch.every_row(value), dim + 1, positions))


def index(batch: Batch, call: Call) -> Results:
    """Read by tensors of positions of neighbouring dimensions.

    Raises `NoRule`: the selection is by a mask, or of dimensions that are not neighbours.
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
    keys = (rows, *(from_own_end(batch, i, value.sizes[place]) for place, i in zip(places, own, strict=True)))
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
    read = taken(batch.every_row(value), dim + 1, from_own_end(batch, own, value.sizes[dim]))
    for place in reversed(places[1:]):
        read = read.squeeze(place + 1)
    return call.result(read)


def from_own_end(batch: Batch, positions: torch.Tensor, size: SizeExpr) -> torch.Tensor:
    """Count negative positions [B or 1, ...] from each row's own end."""
    own = batch.own(size).reshape(-1, *[1] * (positions.dim() - 1)) if is_ragged(size) else int(size)
    return torch.where(positions < 0, positions + own, positions)


def embedding(batch: Batch, call: Call) -> Results:
    """Look up rows of a table that all requests share. Raises `NoRule`: the table is computed for each request."""
    weight, ids = call.value("weight"), call.value("indices")
    if not weight.shared:
        raise NoRule("a table of embeddings that is computed for each request")
    if not ids.shared and not ids.is_input:  # the table has ids that were computed from padding, too
        ids = replace(ids, tensor=batch.masked(ids, ids.ragged_dims, 0))
    rows, ones = without_ones(ids, 0)
    read = torch.nn.functional.embedding(rows.tensor, weight.tensor)
    return Value(with_ones(read, ones, shared=ids.shared), call.sizes[0], ids.shared)


def flip(batch: Batch, call: Call) -> Results:
    """Reverse dimensions, each row within its own size."""
    value = call.value()
    tensor, shared = value.tensor, value.shared
    for dim in call.dims:
        size = value.sizes[dim]
        if is_ragged(size):
            tensor, shared = (batch.every_row(replace(value, tensor=tensor)), False) if shared else (tensor, shared)
            positions = (batch.own(size).unsqueeze(1) - 1 - batch.positions(size)).clamp(min=0)
            tensor = taken(tensor, dim + 1, positions)
        else:
            tensor = tensor.flip(dim if shared else dim + 1)
    return Value(tensor, value.sizes, shared)


def split(batch: Batch, call: Call) -> Results:
    """Divide a dimension; the parts of timesteps begin at each row's own sums of sizes."""
    value, dim = call.value(), call.dim
    results, start = [], sympy.Integer(0)
    for sizes in call.sizes:
        end = start + sizes[dim]
        results.append(_part(batch, value, dim, slice(start, end, 1), sizes))
        start = end
    return tuple(results)


def unbind(batch: Batch, call: Call) -> Results:
    """Take a dimension apart that is not ragged. Raises `NoRule`: the results are the timesteps."""
    value, dim = call.value(), call.dim
    if is_ragged(value.sizes[dim]):
        raise NoRule("a loop over timesteps")
    parts = zip(call.after_rows(), call.sizes, strict=True)
    return tuple(replace(value, tensor=part, sizes=sizes) for part, sizes in parts)


def slice_scatter(batch: Batch, call: Call) -> Results:
    """Write a range of positions. Raises `NoRule`: with a step."""
    value, source, dim = call.value(), call.value("src"), call.dim
    if source.sizes[dim] == 0:
        return value
    if call["step"] not in (None, 1):
        raise NoRule("a write to timesteps with a step other than 1")
    first, size, written = plain_number(call["start"] or 0), value.sizes[dim], source.sizes[dim]
    target, new = batch.every_row(value), batch.every_row(source)
    if first is None or (is_ragged(written) and sympy.simplify(written + first - size) != 0):
        return _written_in_each_row(batch, call, dim)
    if is_ragged(size) and not is_ragged(written) and call["end"] in (None, sys.maxsize):
        return _written_in_each_row(batch, call, dim)
    return call.result(torch.slice_scatter(target, new, dim + 1, first, first + new.shape[dim + 1]))


def _written_in_each_row(batch: Batch, call: Call, dim: int) -> Results:
    """Write a range of positions that begins or ends at another one in each row."""
    value, source = call.value(), call.value("src")
    size, written = value.sizes[dim], source.sizes[dim]
    start = batch.number(sympy.sympify(call["start"] or 0)).unsqueeze(1)
    first = torch.minimum(from_own_end(batch, start, size).clamp(min=0), batch.own(size).unsqueeze(1))
    places = batch.positions(size) - first
    is_within = (places >= 0) & (places < batch.own(written).unsqueeze(1))
    new = taken(batch.every_row(source), dim + 1, places.clamp(0, batch.padded(written) - 1))
    target = batch.every_row(value)
    return call.result(torch.where(in_dim(is_within, dim + 1, target.dim()), new, target))


def select_scatter(batch: Batch, call: Call) -> Results:
    """Write one position."""
    value, source = call.value(), call.value("src")
    dim, position = call.dim, sympy.sympify(call["index"])
    target, new = batch.every_row(value), batch.every_row(source).unsqueeze(dim + 1)
    if position.is_Integer and (position >= 0 or not is_ragged(value.sizes[dim])):
        return call.result(torch.select_scatter(target, new.squeeze(dim + 1), dim + 1, int(position)))
    own = own_position(batch, position, value.sizes[dim]).unsqueeze(1)
    here = torch.arange(target.shape[dim + 1]).unsqueeze(0) == own
    return call.result(torch.where(in_dim(here, dim + 1, target.dim()), new, target))


def scatter(batch: Batch, call: Call) -> Results:
    """Write or add at positions of one dimension, as one-hot encodings do.

    Positions of padding become one more, which is cut off.
    """
    value, index, source, dim = call.value(), call.value("index"), call.get("src"), call.dim
    target, positions = batch.every_row(value), batch.every_row(index)
    new = {"value": in_python(call["value"])} if source is None else {"src": batch.every_row(source)}
    if index.ragged_dims:
        for ragged in index.ragged_dims:
            valid = in_dim(batch.valid(index.sizes[ragged]), ragged + 1, index.rank + 1)
            positions = torch.where(valid, positions, batch.padded(value.sizes[dim]))
        target = torch.cat([target, torch.zeros_like(target.narrow(dim + 1, 0, 1))], dim + 1)
    written = call.run(self=target, dim=dim + 1, index=positions, **new)
    return call.result(written.narrow(dim + 1, 0, batch.padded(value.sizes[dim])) if index.ragged_dims else written)


def index_put(batch: Batch, call: Call) -> Results:
    """Write where a mask is true, or at tensors of positions of neighbouring dimensions.

    Raises `NoRule`: values are written in the order of a mask, or to dimensions that are not neighbours.
    """
    value, source = call.value(), call.value("values")
    given = list(call["indices"])
    indices = [i for i in given if i is not None]
    places = [dim for dim, i in enumerate(given) if i is not None]
    if len(given) == 1 and given[0].tensor.dtype is torch.bool and not source.rank and not call["accumulate"]:
        where = batch.every_row(given[0])
        where = where.reshape(*where.shape, *[1] * (value.rank - given[0].rank))
        numbers = batch.every_row(source).reshape(-1, *[1] * value.rank)
        return call.result(torch.where(where, numbers, batch.every_row(value)))
    if any(i.tensor.dtype is torch.bool for i in indices) or places != list(range(places[0], places[-1] + 1)):
        raise NoRule("a write at positions of a mask, or of dimensions that are not neighbours")
    first, rank = places[0], max(i.rank for i in indices)
    target = batch.every_row(value).movedim([p + 1 for p in places], list(range(1, 1 + len(places))))
    keys = [unsqueezed(batch.every_row(i), rank - i.rank) for i in indices]
    shape = torch.broadcast_shapes(*(key.shape for key in keys))
    whole = [from_own_end(batch, key.expand(shape), value.sizes[p]) for key, p in zip(keys, places, strict=True)]
    longer = torch.cat([target, torch.zeros_like(target.narrow(1, 0, 1))], 1)
    for i in indices:
        for dim in i.ragged_dims:
            valid = in_dim(batch.valid(i.sizes[dim]), dim + 1 + rank - i.rank, rank + 1)
            whole[0] = torch.where(valid, whole[0], target.shape[1])
    rows = torch.arange(batch.rows).reshape(-1, *[1] * rank)
    rest = [d for d in range(value.rank) if d not in places]
    full = [*batch.padded_sizes(value.sizes[d] for d in rest if d < first), *shape[1:]]
    full += batch.padded_sizes(value.sizes[d] for d in rest if d > first)
    written = unsqueezed(batch.every_row(source), len(full) - source.rank).expand(batch.rows, *full)
    written = written.movedim(list(range(1 + first, 1 + first + rank)), list(range(1, 1 + rank)))
    longer = torch.index_put(longer, (rows, *whole), written, accumulate=call["accumulate"])
    found = longer.narrow(1, 0, target.shape[1])
    return call.result(found.movedim(list(range(1, 1 + len(places))), [p + 1 for p in places]))
