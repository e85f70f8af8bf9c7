"""Computation of all timesteps at once: a family is one tensor [T, ...], a recurrence one layer.

A standard cell is one layer, a buffer is concatenated; other recurrences are a scan.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..errors import UnknownLoop, at_line
from ..packing.packed_placeholder import same_size
from .recipe import (
    Constant,
    Count,
    Counting,
    LastOnly,
    Listed,
    Member,
    Operand,
    Recipe,
    Result,
    Run,
    Stacked,
    Starting,
    Unit,
    evaluation_order,
    operands_of,
    sources_of,
)
from .steps import CELLS, Steps, run_cell
from .vectorized import call_for_all, in_a_row, joined_members

_aten = torch.ops.aten
_WRITES = (_aten.select_scatter.default, _aten.slice_scatter.default)


class Evaluation(dict[int, Any]):
    """Values of the units of a recipe, by unit, while they are computed for one request of `timesteps` timesteps."""

    def __init__(self, recipe: Recipe, inputs: Mapping[str, torch.Tensor], timesteps: Any) -> None:
        super().__init__()
        self.recipe, self._inputs, self._timesteps = recipe, inputs, timesteps
        self.final: dict[int, torch.Tensor] = {}
        """States after the last step of a scan: where it has no steps, they are the first ones."""

    def outputs(self) -> list[Any]:
        """Compute every unit, and return the outputs.

        Raises `UnknownLoop`: a recurrence is none of the standard cells; names the line.
        """
        for units in evaluation_order(self.recipe):
            self._compute(units)
        return [self.single(operand) for operand in self.recipe.outputs]

    def _compute(self, indices: Sequence[int]) -> None:
        units = {index: self.recipe.units[index] for index in indices}
        index, unit = next(iter(units.items()))
        if unit.count is None:
            self[index] = self._call(unit)
        elif not any(sources_of(unit) & units.keys() for unit in units.values()):
            self[index] = self._family(unit)
        else:
            _compute_recurrence(self, units)

    def _call(self, unit: Unit) -> Any:
        if unit.node.op == "placeholder":
            return self._inputs[unit.target]
        args = [self.single(operand) for operand in unit.args]
        if unit.target is _aten.unbind.int:
            return args[0].movedim(args[1] if len(args) > 1 else 0, 0)
        if unit.target is _aten.split.Tensor and args[1] == 1:
            dim = args[2] if len(args) > 2 else 0
            return args[0].unsqueeze(dim + 1 if dim >= 0 else dim).movedim(dim if dim >= 0 else dim - 1, 0)
        if unit.target in CELLS:
            x, state, *weights = args
            cell = CELLS[unit.target]
            _, last = run_cell(cell, x.unsqueeze(0), state if cell == "lstm" else [state], weights)
            return last if cell == "lstm" else last[0]
        joined = joined_members(unit, args)
        kwargs = {name: self.single(operand) for name, operand in unit.kwargs.items()}
        return unit.target(*args, **kwargs) if joined is None else joined

    def _family(self, unit: Unit) -> Any:
        """Compute all members of a family that is no recurrence."""
        assert unit.count is not None
        is_part = unit.target in (_aten.select.int, operator.getitem, _aten.slice.Tensor)
        if is_part and (sliced := self._sliced(unit)) is not None:
            return sliced
        if unit.target is operator.getitem:
            return self._item(unit)
        args = [self.all_members(operand, unit) for operand in unit.args]
        if unit.target in CELLS:
            raise UnknownLoop(f"a cell is called with a state of its own at every timestep{at_line(unit.node)}")
        kwargs = {name: self.all_members(operand, unit) for name, operand in unit.kwargs.items()}
        return call_for_all(unit.target, args, kwargs, self.number(unit.count))

    def _item(self, unit: Unit) -> Any:
        """Return one of the results of a family whose operator has several."""
        match unit.args:
            case (Member(index, Count(0, 0, 0), 1), Count(number)):
                return self[index][number]
        raise UnknownLoop(f"a loop takes other results at some timesteps{at_line(unit.node)}")

    def _sliced(self, unit: Unit) -> torch.Tensor | None:
        """Return x[:, t] or x[:, t : t + 1] for all members, read from an x that they share."""
        source, *where = unit.args
        whole = isinstance(source, Result) or (isinstance(source, Member) and not source.step)
        index = where[min(1, len(where) - 1)]
        if not whole or not isinstance(index, Counting):
            return None
        assert unit.count is not None
        value = self.single(source)
        dim = 0
        if unit.target is not operator.getitem:
            dim = where[0].base % value.dim()  # type: ignore[union-attr]  # a number
            value = value.movedim(dim, 0)
        if index.step not in (1, -1):
            raise UnknownLoop(f"a loop does not read every timestep{at_line(unit.node)}")
        part = self._in_turn(value, index.first, index.step, unit.count)
        if unit.target is not _aten.slice.Tensor:
            return part
        end = where[2]
        if end != Counting(index.first.plus(1), index.step) or len(where) > 3:
            raise UnknownLoop(f"a loop reads more than one timestep{at_line(unit.node)}")
        return part.unsqueeze(dim + 1)

    def _in_turn(self, value: torch.Tensor, first: Count, step: int, count: Count) -> torch.Tensor:
        """Return timesteps or members of value[T, ...], up or down from the first."""
        start, length = self.number(first), self.number(count)
        return value.narrow(0, start, length) if step > 0 else value.narrow(0, start - (length - 1), length).flip(0)

    def number(self, count: Count) -> Any:
        """Return a count of the recipe for the timesteps of this request."""
        frames = self.recipe.frames
        steps = 0 if not count.frame_slope or frames is None else self[frames[0]].shape[frames[1]]
        return count.at(self._timesteps, steps)

    def single(self, operand: Operand | Run) -> Any:
        """Return an argument of a single call."""
        match operand:
            case Count():
                return self.number(operand)
            case Constant():
                return operand.value
            case Result():
                return self[operand.unit]
            case Member():
                return self._element(operand)
            case Run():
                return self._members(operand.unit, operand.first, operand.step, operand.count)
            case Listed():
                return [Stacked(self.single(i)) if isinstance(i, Run) else self.single(i) for i in operand.items]
        raise UnknownLoop(f"{type(operand).__name__} outside of a loop")

    def _element(self, member: Member) -> torch.Tensor:
        count = self.recipe.units[member.unit].count
        assert count is not None
        if member.unit in self.final and member.first == count.plus(-1):
            return self.final[member.unit]
        if isinstance(value := self[member.unit], LastOnly):
            if member.first != count.plus(-1):
                raise UnknownLoop(f"a state of a cell is read before the last timestep{self.line_of(member.unit)}")
            return value.tensor
        element: torch.Tensor = value.select(0, self.number(member.first))
        return element

    def _members(self, unit: int, first: Count, step: int, count: Count) -> torch.Tensor:
        """Return members of a family, or timesteps of what was split into them, as [count, ...]."""
        value: torch.Tensor | LastOnly = self[unit]
        if isinstance(value, LastOnly):
            raise UnknownLoop(f"the states of a cell are read at every timestep{self.line_of(unit)}")
        whole = self.recipe.units[unit].count == count and step > 0 and first == Count(0)
        return value if whole else self._in_turn(value, first, step, count)

    def line_of(self, unit: int) -> str:
        """Return the line of the user's model, as the end of a sentence; empty if it is not known."""
        return at_line(self.recipe.units[unit].node)

    def all_members(self, operand: Operand | Run, unit: Unit) -> Any:
        """Return an argument for all members of a family: `Stacked`, or what they share."""
        count = unit.count
        assert count is not None
        match operand:
            case Member() if operand.step:
                missing = self._missing(operand, count)
                members = self._members(operand.unit, operand.first, operand.step, count.plus(-missing))
                unread = members.new_zeros(missing, *members.shape[1:])  # members that nothing reads
                return Stacked(torch.cat([members, unread]) if missing else members)
            case Starting(given, Member(index, second, step)):
                first = self.single(given)
                others = self._members(index, second.plus(step), step, count.plus(-1))
                if not isinstance(first, torch.Tensor):  # a number, such as the 0 with which `sum` of a list starts
                    first = others.new_full(others.shape[1:], first)
                return Stacked(torch.cat([first.unsqueeze(0), others]))
            case Listed():
                return [self.all_members(item, unit) for item in operand.items]
            case Counting():
                raise UnknownLoop(f"a loop computes with the index of the timestep{at_line(unit.node)}")
        return self.single(operand)

    def _missing(self, member: Member, count: Count) -> int:
        """Return how many members that a loop reads are not in the trace, as nothing reads its results."""
        own = self.recipe.units[member.unit].count
        fixed = replace(member.first, base=0) == Count(0)
        if own is None or member.step != 1 or not fixed or isinstance(self[member.unit], LastOnly):
            return 0
        alike = (own.slope, own.frame_slope) == (count.slope, count.frame_slope)
        return max(0, member.first.base + count.base - own.base) if alike else 0


def _compute_recurrence(values: Evaluation, units: Mapping[int, Unit]) -> None:
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


def _is_layer(values: Evaluation, cell: int, others: Mapping[int, Unit]) -> bool:
    """Whether a recurrent layer computes a cell: its calls follow each other, and c is read at the end only."""
    for index, unit in others.items():
        if unit.target is not operator.getitem or unit.args[0] != Member(cell, Count(0), 1):
            return False
        readers = _readers(values, index, {cell, *others})
        last = None if unit.count is None else Member(index, unit.count.plus(-1), 0)
        if unit.args[1] != Count(0) and any(reader != last for reader in readers):
            return False
    return True


def _readers(values: Evaluation, index: int, own: set[int]) -> list[Member | Run]:
    """Return the arguments outside of a recurrence that read the values of one of its units."""
    units = [unit for i, unit in enumerate(values.recipe.units) if i not in own]
    read = [operand for unit in units for operand in operands_of((*unit.args, *unit.kwargs.values()))]
    read += operands_of(values.recipe.outputs)
    return [operand for operand in read if isinstance(operand, Member | Run) and operand.unit == index]


def _scan(values: Evaluation, units: Mapping[int, Unit]) -> None:
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
    values.update(computed)
    values.final.update({unit: state for unit, state in final.items() if values.recipe.units[unit].count == count})


def _cell(values: Evaluation, unit: Unit, own: set[int]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
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
    if not isinstance(inputs := values.all_members(x, unit), Stacked):
        inputs = Stacked(inputs.unsqueeze(0).expand(values.number(unit.count), *inputs.shape))
    return run_cell(CELLS[unit.target], inputs.tensor, initial, [values.single(weight) for weight in weights])


def _written(values: Evaluation, index: int, unit: Unit) -> torch.Tensor:
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
    if not isinstance(written := values.all_members(source, unit), Stacked):
        raise UnknownLoop(f"one value is written at every timestep{values.line_of(index)}")
    new = written.tensor if where.step > 0 else written.tensor.flip(0)
    new = new.movedim(0, place) if not rest else new.movedim(0, place).squeeze(place + 1)
    start, length = values.number(where.first), values.number(unit.count)
    start = start if where.step > 0 else start - (length - 1)
    end, size = start + length, before.shape[place]
    parts = [] if same_size(start, 0) else [before.narrow(place, 0, start)]
    parts += [new] if same_size(end, size) else [new, before.narrow(place, end, size - end)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, place)


def _appended(values: Evaluation, index: int, unit: Unit) -> torch.Tensor:
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
    if not isinstance(appended := values.all_members(new, unit), Stacked):
        raise UnknownLoop(f"one value is appended at every timestep{values.line_of(index)}")
    rows = in_a_row(appended.tensor if is_last else appended.tensor.flip(0), place)
    first = values.single(before)
    return torch.cat([first, rows] if is_last else [rows, first], place)
