"""Values of the units of a recipe while they are computed, and the arguments that are read from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..errors import UnknownLoop, at_line
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
)


class UnitValues:
    """The values that are known, for one request of `timesteps` timesteps."""

    def __init__(self, recipe: Recipe, timesteps: Any) -> None:
        self.recipe, self._timesteps = recipe, timesteps
        self._values: dict[int, Any] = {}
        self._final: dict[int, torch.Tensor] = {}
        """States after the last step of a scan: where it has no steps, they are the first ones."""

    def __getitem__(self, unit: int) -> Any:
        return self._values[unit]

    def __setitem__(self, unit: int, value: Any) -> None:
        self._values[unit] = value

    def add_scan(self, values: Mapping[int, Any], final: Mapping[int, torch.Tensor]) -> None:
        """Add values of units computed step by step, and their states after the last step."""
        self._values.update(values)
        self._final.update(final)

    def number(self, count: Count) -> Any:
        """Return a count of the recipe for the timesteps of this request."""
        frames = self.recipe.frames
        if not count.frame_slope or frames is None:
            return count.at(self._timesteps, 0)
        return count.at(self._timesteps, self._values[frames[0]].shape[frames[1]])

    def single(self, operand: Operand | Run) -> Any:
        """Return an argument of a single call."""
        match operand:
            case Count():
                return self.number(operand)
            case Constant():
                return operand.value
            case Result():
                return self._values[operand.unit]
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
        if member.unit in self._final and member.first == count.plus(-1):
            return self._final[member.unit]
        value = self._values[member.unit]
        if isinstance(value, LastOnly):
            if member.first != count.plus(-1):
                raise UnknownLoop(f"a state of a cell is read before the last timestep{self.line_of(member.unit)}")
            return value.tensor
        element: torch.Tensor = value.select(0, self.number(member.first))
        return element

    def _members(self, unit: int, first: Count, step: int, count: Count) -> torch.Tensor:
        """Return members of a family, or timesteps of what was split into them, as [count, ...]."""
        value: torch.Tensor | LastOnly = self._values[unit]
        if isinstance(value, LastOnly):
            raise UnknownLoop(f"the states of a cell are read at every timestep{self.line_of(unit)}")
        start, length = self.number(first), self.number(count)
        whole = self.recipe.units[unit].count
        if step < 0:
            start = start - (length - 1)
        part = value if whole == count and step > 0 and first == Count(0) else value.narrow(0, start, length)
        return part if step > 0 else part.flip(0)

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
            case Starting():
                first = self.single(operand.first)
                rest = operand.rest
                assert isinstance(rest, Member)
                later = rest.first.plus(rest.step)
                others = self._members(rest.unit, later, rest.step, count.plus(-1))
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
        if own is None or member.step != 1 or not fixed or isinstance(self._values[member.unit], LastOnly):
            return 0
        alike = (own.slope, own.frame_slope) == (count.slope, count.frame_slope)
        return max(0, member.first.base + count.base - own.base) if alike else 0
