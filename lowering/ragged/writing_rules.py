"""Rules of operators that write by position: what a row writes beyond its own sizes is cut off."""

from __future__ import annotations

import sys

import sympy
import torch

from .indexing_rules import from_own_end, own_position, plain_number, taken
from .sizes import in_python, is_ragged
from .value import Batch, Call, NoRule, Results, Value, in_dim, normalized, unsqueezed


def slice_scatter(batch: Batch, call: Call) -> Results:
    """Write a range of positions. Raises `NoRule`: with a step."""
    value, source = call.value(), call.value("src")
    dim = normalized(call["dim"], value.rank)
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
    dim, position = normalized(call["dim"], value.rank), sympy.sympify(call["index"])
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
    value, index, source = call.value(), call.value("index"), call.get("src")
    dim = normalized(call["dim"], value.rank)
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
        return _masked_put(batch, call, value, given[0], source)
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
    found = torch.index_put(longer, (rows, *whole), written, accumulate=call["accumulate"]).narrow(
        1, 0, target.shape[1]
    )
    return call.result(found.movedim(list(range(1, 1 + len(places))), [p + 1 for p in places]))


def _masked_put(batch: Batch, call: Call, value: Value, mask: Value, number: Value) -> Results:
    where = batch.every_row(mask)
    where = where.reshape(*where.shape, *[1] * (value.rank - mask.rank))
    numbers = batch.every_row(number).reshape(-1, *[1] * value.rank)
    return call.result(torch.where(where, numbers, batch.every_row(value)))
