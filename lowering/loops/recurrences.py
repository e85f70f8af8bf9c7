"""Computation of recurrences: a standard cell is one layer, a buffer is concatenated, else a scan."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

import torch

from ..errors import UnknownLoop, at_line
from ..packing.padded_batch import same_size
from .recipe import Count, Counting, LastOnly, Listed, Member, Run, Stacked, Starting, Unit, operands_of
from .steps import CELLS, Steps, run_cell
from .unit_values import UnitValues
from .vectorized import in_a_row

_aten = torch.ops.aten
_WRITES = (_aten.select_scatter.default, _aten.slice_scatter.default)


def compute_recurrence(values: UnitValues, units: Mapping[int, Unit]) -> None:
    """Compute units that take their own earlier members: a cell, or a buffer that is filled step by step.

    Raises `UnknownLoop`: it is none of the standard cells and no scan; names the line.
    """
    found = [(index, unit) for index, unit in units.items() if unit.target in (*CELLS, *_WRITES)]
    index, unit = (*found, *units.items())[0]
    if unit.target in _WRITES and len(units) == 1:
        values[index] = LastOnly(_written(values, index, unit))
        return
    if unit.target is _aten.cat.default and len(units) == 1:
        values[index] = LastOnly(_appended(values, index, unit))
        return
    others = {i: u for i, u in units.items() if i != index}
    if unit.target not in CELLS or not _is_layer(values, index, others):
        _scan(values, units)
        return
    states, last = _cell(values, unit, set(units))
    values[index] = states
    for i, u in others.items():
        number = u.args[1]
        assert isinstance(number, Count)
        values[i] = states if number.base == 0 else LastOnly(last[number.base])


def _is_layer(values: UnitValues, cell: int, others: Mapping[int, Unit]) -> bool:
    """Whether a recurrent layer computes a cell: its calls follow each other, and c is read at the end only."""
    for index, unit in others.items():
        if unit.target is not operator.getitem or unit.args[0] != Member(cell, Count(0), 1):
            return False
        readers = _readers(values, index, {cell, *others})
        last = None if unit.count is None else Member(index, unit.count.plus(-1), 0)
        if unit.args[1] != Count(0) and any(reader != last for reader in readers):
            return False
    return True


def _readers(values: UnitValues, index: int, own: set[int]) -> list[Member | Run]:
    """Return the arguments outside of a recurrence that read the values of one of its units."""
    units = [unit for i, unit in enumerate(values.recipe.units) if i not in own]
    read = [operand for unit in units for operand in operands_of((*unit.args, *unit.kwargs.values()))]
    read += operands_of(values.recipe.outputs)
    return [operand for operand in read if isinstance(operand, Member | Run) and operand.unit == index]


def _scan(values: UnitValues, units: Mapping[int, Unit]) -> None:
    """Compute units step by step."""
    index = next(iter(units))
    if any(one.target in _WRITES for one in units.values()):
        raise UnknownLoop(f"a buffer that the loop writes is part of its recurrence{values.line_of(index)}")
    counts = [unit.count for unit in units.values() if unit.count is not None]
    if len({(count.slope, count.frame_slope) for count in counts}) != 1:
        raise UnknownLoop(f"the operators of a recurrence have different numbers of calls{values.line_of(index)}")
    count = max(counts, key=lambda count: count.base)  # a call whose last result nothing reads is missing in the trace
    steps = Steps({i: replace(one, count=count) for i, one in units.items()}, values.all_members)
    seen = {i: values.number(one.count) for i, one in units.items() if one.count and _readers(values, i, set(units))}
    computed, final = steps.run(values.single, values.number(count), seen)
    kept = {unit: state for unit, state in final.items() if values.recipe.units[unit].count == count}
    values.add_scan(computed, kept)


def _cell(values: UnitValues, unit: Unit, own: set[int]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Compute a standard cell: its states [T, N, H], and the last of each state [N, H]."""
    x, state, *weights = unit.args
    assert unit.count is not None
    initial = []
    for given in state.items if isinstance(state, Listed) else (state,):
        match given:
            case Starting(first, Member(index, Count(-1, 0, 0), 1)) if index in own:
                initial.append(values.single(first))
            case _:
                raise UnknownLoop(f"the state of a cell is not that of the timestep before{at_line(unit.node)}")
    inputs = values.all_members(x, unit)
    if not isinstance(inputs, Stacked):
        inputs = Stacked(inputs.unsqueeze(0).expand(values.number(unit.count), *inputs.shape))
    return run_cell(CELLS[unit.target], inputs.tensor, initial, [values.single(weight) for weight in weights])


def _written(values: UnitValues, index: int, unit: Unit) -> torch.Tensor:
    """Return a buffer after all members have written their timestep."""
    buffer, source, dim, where, *rest = unit.args
    assert unit.count is not None
    if (
        not isinstance(buffer, Starting)
        or buffer.rest != Member(index, Count(-1), 1)
        or not isinstance(where, Counting)
        or where.step not in (1, -1)
        or where.first.slope == where.first.frame_slope == 0 > where.first.base
        or rest not in ([], [Counting(where.first.plus(1), where.step)])
    ):
        raise UnknownLoop(f"a buffer is not written timestep by timestep{values.line_of(index)}")
    before = values.single(buffer.first)
    place = values.single(dim) % before.dim()
    written = values.all_members(source, unit)
    if not isinstance(written, Stacked):
        raise UnknownLoop(f"one value is written at every timestep{values.line_of(index)}")
    new = written.tensor if where.step > 0 else written.tensor.flip(0)
    new = new.movedim(0, place) if not rest else new.movedim(0, place).squeeze(place + 1)
    start, length = values.number(where.first), values.number(unit.count)
    start = start if where.step > 0 else start - (length - 1)
    end, size = start + length, before.shape[place]
    parts = [] if same_size(start, 0) else [before.narrow(place, 0, start)]
    parts += [new] if same_size(end, size) else [new, before.narrow(place, end, size - end)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, place)


def _appended(values: UnitValues, index: int, unit: Unit) -> torch.Tensor:
    """Return a tensor to which each step appends its result: `outputs = torch.cat([outputs, h], 1)`."""
    parts, *dim = unit.args
    place = values.single(dim[0]) if dim else 0
    match parts:
        case Listed((Starting(before, Member(own, Count(-1, 0, 0), 1)), new)) if own == index:
            is_last = True
        case Listed((new, Starting(before, Member(own, Count(-1, 0, 0), 1)))) if own == index:
            is_last = False
        case _:
            raise UnknownLoop(f"a loop concatenates other tensors than its results{values.line_of(index)}")
    appended = values.all_members(new, unit)
    if not isinstance(appended, Stacked):
        raise UnknownLoop(f"one value is appended at every timestep{values.line_of(index)}")
    rows = in_a_row(appended.tensor if is_last else appended.tensor.flip(0), place)
    first = values.single(before)
    return torch.cat([first, rows] if is_last else [rows, first], place)
