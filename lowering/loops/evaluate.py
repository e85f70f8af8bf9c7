"""Computation of all timesteps at once: a family is one tensor [T, ...], a recurrence one layer."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import UnknownLoop, at_line
from .recipe import Count, Counting, Member, Recipe, Result, Unit, evaluation_order, sources_of
from .recurrences import compute_recurrence
from .steps import CELLS, run_cell
from .unit_values import UnitValues
from .vectorized import call_for_all, joined_members

_aten = torch.ops.aten


class Evaluation:
    """Values of the units of a recipe for one request of `timesteps` timesteps."""

    def __init__(self, recipe: Recipe, inputs: Mapping[str, torch.Tensor], timesteps: Any) -> None:
        self._inputs = inputs
        self._values = UnitValues(recipe, timesteps)

    def outputs(self) -> list[Any]:
        """Compute every unit, and return the outputs.

        Raises `UnknownLoop`: a recurrence is none of the standard cells; names the line.
        """
        for units in evaluation_order(self._values.recipe):
            self._compute(units)
        return [self._values.single(operand) for operand in self._values.recipe.outputs]

    def _compute(self, indices: Sequence[int]) -> None:
        units = {index: self._values.recipe.units[index] for index in indices}
        index, unit = next(iter(units.items()))
        if unit.count is None:
            self._values[index] = self._call(unit)
        elif not any(sources_of(unit) & units.keys() for unit in units.values()):
            self._values[index] = self._family(unit)
        else:
            compute_recurrence(self._values, units)

    def _call(self, unit: Unit) -> Any:
        if unit.node.op == "placeholder":
            return self._inputs[unit.target]
        args = [self._values.single(operand) for operand in unit.args]
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
        kwargs = {name: self._values.single(operand) for name, operand in unit.kwargs.items()}
        return unit.target(*args, **kwargs) if joined is None else joined

    def _family(self, unit: Unit) -> Any:
        """Compute all members of a family that is no recurrence."""
        assert unit.count is not None
        if unit.target in (_aten.select.int, operator.getitem, _aten.slice.Tensor):
            sliced = self._sliced(unit)
            if sliced is not None:
                return sliced
        if unit.target is operator.getitem:
            return self._item(unit)
        args = [self._values.all_members(operand, unit) for operand in unit.args]
        if unit.target in CELLS:
            raise UnknownLoop(f"a cell is called with a state of its own at every timestep{at_line(unit.node)}")
        kwargs = {name: self._values.all_members(operand, unit) for name, operand in unit.kwargs.items()}
        return call_for_all(unit.target, args, kwargs, self._values.number(unit.count))

    def _item(self, unit: Unit) -> Any:
        """Return one of the results of a family whose operator has several."""
        source, number = unit.args
        if (
            not isinstance(source, Member)
            or source != Member(source.unit, Count(0), 1)
            or not isinstance(number, Count)
        ):
            raise UnknownLoop(f"a loop takes other results at some timesteps{at_line(unit.node)}")
        return self._values[source.unit][number.base]

    def _sliced(self, unit: Unit) -> torch.Tensor | None:
        """Return x[:, t] or x[:, t : t + 1] for all members, read from an x that they share."""
        source, *where = unit.args
        whole = isinstance(source, Result) or (isinstance(source, Member) and not source.step)
        if not whole or not isinstance(where[-1] if len(where) < 3 else where[1], Counting):
            return None
        assert unit.count is not None
        value = self._values.single(source)
        dim = 0
        if unit.target is not operator.getitem:
            dim = where[0].base % value.dim()  # type: ignore[union-attr]  # a number
            value = value.movedim(dim, 0)
        index = where[0] if unit.target is operator.getitem else where[1]
        assert isinstance(index, Counting)
        part = self._steps(value, index, unit)
        if unit.target is not _aten.slice.Tensor:
            return part
        end = where[2]
        if end != Counting(index.first.plus(1), index.step) or len(where) > 3:
            raise UnknownLoop(f"a loop reads more than one timestep{at_line(unit.node)}")
        return part.unsqueeze(dim + 1)

    def _steps(self, value: torch.Tensor, index: Counting, unit: Unit) -> torch.Tensor:
        """Return the timesteps of value[T, ...] that the members of a family read, up or down from the first."""
        assert unit.count is not None
        if index.step not in (1, -1):
            raise UnknownLoop(f"a loop does not read every timestep{at_line(unit.node)}")
        start, length = self._values.number(index.first), self._values.number(unit.count)
        if index.step > 0:
            return value.narrow(0, start, length)
        return value.narrow(0, start - (length - 1), length).flip(0)
