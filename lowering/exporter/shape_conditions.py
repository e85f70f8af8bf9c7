"""Conditions on the sizes of its inputs under which a program holds, and sizes outside of them.

They are those that the exporter says, and the branches of forward() on the number of timesteps, with their lines.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, partialmethod
from types import CodeType, SimpleNamespace
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions

from ...bucketing.shapes import Axis, TensorSpec
from ..errors import PartialTrace, calling_line, is_model_file, source_suffix
from .model_attributes import replaced, replaced_each


class BranchOnTimesteps(PartialTrace):
    """A branch that only some numbers of timesteps take; the message has its line."""

    on_remainder = False
    """Whether the branch is on a remainder, such as that of odd numbers."""


@dataclass(frozen=True)
class Branch:
    """A condition on sizes that forward() has tested, and the result for the traced number of timesteps."""

    condition: sympy.Basic
    taken: bool
    line: str | None

    @property
    def divisor(self) -> sympy.Basic | None:
        """The divisor of the remainder that the condition is on; None for another condition."""
        remainders = self.condition.atoms(functions.Mod, functions.PythonMod)
        return max((remainder.args[1] for remainder in remainders), key=str, default=None)

    def differs_at(self, timesteps: int) -> bool:
        """Whether another number of timesteps takes the other branch."""
        return self.result_at(timesteps) not in (None, self.taken)

    def result_at(self, timesteps: int) -> bool | None:
        """Return whether the condition is true for a number of timesteps; None where that is not decided."""
        symbols = self.condition.free_symbols
        value = self.condition.xreplace(dict.fromkeys(symbols, sympy.Integer(timesteps)))
        return bool(value) if len(symbols) == 1 and value in (sympy.true, sympy.false) else None


def noted_branches(branches: list[Branch]) -> AbstractContextManager[None]:
    """Append the branches on conditions on sizes that the model's code takes, or that of a library."""

    def tested(own: torch.SymBool, original: Callable[[Any], bool]) -> bool:
        condition = sympy.sympify(own.node.expr)  # before it is taken: an equation fixes the number of timesteps
        taken = original(own)
        if is_model_file(sys._getframe(1).f_code.co_filename):
            branches.append(Branch(condition, taken, calling_line()))
        return taken

    return replaced(torch.SymBool, "__bool__", partialmethod(tested, torch.SymBool.__bool__))


def branch_error(name: str, branches: Sequence[Branch], timesteps: int) -> BranchOnTimesteps | None:
    """Create the error about the first branch that `timesteps` do not take; None without one."""
    branch = next((branch for branch in branches if branch.differs_at(timesteps)), None)
    if branch is None:
        return None
    instead = (
        "write code that is the same for every number of timesteps"
        if (n := branch.divisor) is None
        else f"cut with x[:, : T // {n} * {n}] or pad with F.pad(x, (0, 0, 0, {_missing(n)})), which do nothing at "
        f"multiples of {n}"
    )
    error = BranchOnTimesteps(
        f"{name} takes a branch that a request of {timesteps} timesteps does not take{source_suffix(branch.line)}, "
        f"and its program would hold for some numbers of timesteps only: {instead}"
    )
    error.on_remainder = branch.divisor is not None
    return error


def _missing(divisor: sympy.Basic) -> str:
    """Return the timesteps that a multiple of the divisor has more than T, as code."""
    return "T % 2" if divisor == 2 else f"({divisor} - T % {divisor}) % {divisor}"


@dataclass(frozen=True)
class Condition:
    """A condition in Python, as the exporter wrote it."""

    text: str
    code: CodeType

    @property
    def is_equation(self) -> bool:
        """Whether two sizes must be equal."""
        return "==" in self.text

    @property
    def is_inequation(self) -> bool:
        """Whether two sizes must differ, as when a size must not be 1; that may be written as 2 or more."""
        is_least_size = self.text.endswith((">= 2", "> 1")) or self.text.startswith(("2 <= ", "1 < "))
        return ("!=" in self.text or is_least_size) and not self.is_equation


class ShapeConditions:
    """Conditions of a program on the sizes of its inputs, and of the lengths of a batch if it takes them."""

    def __init__(self, program: torch.export.ExportedProgram, inputs: Sequence[TensorSpec]) -> None:
        layouts = {spec.name.replace(".", "_"): spec.shape for spec in inputs}
        self._sizes: dict[str, Sequence[int | str]] = {**layouts, "sequence_lengths": ("batch",)}
        self._conditions = [Condition(text, compile(text, "<exporter>", "eval")) for text in program._guards_code]
        symbols = _symbols(program, self._sizes)
        bounds = {axis: program.range_constraints.get(symbol) for axis, symbol in symbols}
        self._bounds = {axis: (own.lower, own.upper) for axis, own in bounds.items() if own is not None}
        self.time_symbols = {size for axis, size in symbols if axis == "time"}
        least = (own.lower for own in program.range_constraints.values())
        self.lowest = max((int(size) for size in least if isinstance(size, sympy.Integer)), default=1)
        """The greatest of the lower bounds of symbolic sizes."""

    @property
    def numbers(self) -> set[int]:
        """Return the numbers in the conditions, at or beyond which they may not hold."""
        return {int(number) for condition in self._conditions for number in re.findall(r"\b\d+\b", condition.text)}

    def failing(self, batch: int, time: int) -> Iterator[Condition]:
        """Yield the conditions that do not hold for these numbers of rows and timesteps."""
        known = {"batch": batch, "time": time}
        sizes = {name: [known.get(str(size), size) for size in own] for name, own in self._sizes.items()}
        # as conditions read it
        shapes = {name: SimpleNamespace(size=partial(list, own)) for name, own in sizes.items()}
        for condition in self._conditions:
            try:
                holds = eval(condition.code, {"L": shapes, "math": math, "torch": torch})  # noqa: S307 - written by torch's exporter
            except ZeroDivisionError:  # a size that is 0 divides another one
                holds = False
            if not holds:
                yield condition

    def holds(self, batch: int, time: int) -> bool:
        """Whether the program is known to hold, so that it can be run as it is."""
        known = {"batch": batch, "time": time}
        within = all(low <= known[axis] <= high for axis, (low, high) in self._bounds.items())
        return within and next(self.failing(batch, time), None) is None


def _symbols(program: torch.export.ExportedProgram, sizes: Mapping[str, Sequence[int | str]]) -> list[tuple[Axis, Any]]:
    """Return the axes of the inputs of which a dimension is symbolic, with its expression."""
    return [
        (axis, size.node.expr)  # type: ignore[misc]  # an axis, as is checked
        for node in program.graph.nodes
        for size, axis in zip(getattr(node.meta.get("val"), "shape", ()), sizes.get(node.name, ()), strict=False)
        if isinstance(size, torch.SymInt) and axis in ("batch", "time")
    ]


_CHECKED = 1000
"""Numbers of timesteps that are checked one by one."""
_MANY = 1 << 40
"""More timesteps than any session has."""


@dataclass(frozen=True)
class TimeBound:
    """Numbers of timesteps beyond the buckets for which a program is not known to hold."""

    line: str | None
    """The line of the branch that they take otherwise, if it is known."""


def find_time_bound(conditions: ShapeConditions, branches: Sequence[Branch], longest: int) -> TimeBound | None:
    """Return a bound that the exporter's conditions set beyond the longest sequence that is served.

    None: the program of one row holds for any number of timesteps.
    """
    numbers = timesteps_beyond(branches, longest, conditions.numbers)
    if all(conditions.holds(1, number) for number in numbers):
        return None
    over_time = [branch for branch in branches if branch.condition.free_symbols <= conditions.time_symbols]
    return TimeBound(next((branch.line for branch in over_time if any(map(branch.differs_at, numbers))), None))


def timesteps_beyond(branches: Sequence[Branch], longest: int, written: Iterable[int] = ()) -> list[int]:
    """Return numbers of timesteps beyond `longest` to check, ascending; those near numbers in the conditions too."""
    numbers = {*written, *(int(n) for branch in branches for n in branch.condition.atoms(sympy.Integer))}
    near = {near for number in numbers for near in (number, number + 1) if near > longest}
    return sorted({*range(longest + 1, longest + 1 + _CHECKED), *near, _MANY})


_CHUNKS = re.compile(r"range\([^,]+,[^,]+,")
"""A loop over chunks of the timesteps, as in `range(0, T, 512)`."""


def lengths_outside(
    conditions: ShapeConditions, name: str, lengths: Sequence[int], branches: Sequence[Branch], fixing: Sequence[str]
) -> set[int]:
    """Return numbers of timesteps of one request that the exporter excluded by an inequation, or as too few.

    Most of them are excluded because a size would be 1, which changes nothing; so they are to be compared with the
    model. Every condition is evaluated for all `lengths`. `fixing` are the lines at which sizes become numbers.

    Raises `BranchOnTimesteps`: the program holds only for some numbers of timesteps, such as odd ones; names the line.
    Raises `PartialTrace`: the same; names the line that reads a size as a number, or the condition.
    """
    outside: set[int] = set()
    excluded: dict[int, Condition] = {}
    for time in lengths:
        for condition in conditions.failing(1, time):
            if condition.is_equation or (time >= conditions.lowest and not condition.is_inequation):
                excluded.setdefault(time, condition)
            outside.add(time)
    branching = {time for time in lengths if any(branch.differs_at(time) for branch in branches)}
    if excluded or branching:
        first = next(iter(excluded), None) or min(branching)
        error = branch_error(name, branches, first) or _fixed(name, excluded[first], fixing)
        error.excluded = frozenset({*excluded, *branching})
        raise error
    return outside


def _fixed(name: str, condition: Condition, fixing: Sequence[str]) -> PartialTrace:
    """Create the error about a trace that holds for some numbers of timesteps only."""
    if condition.is_equation and fixing:
        instead = (
            "give the whole sequence to the layer in place of its chunks. Buckets of one chunk or less are served too"
            if _CHUNKS.search(fixing[0])
            else "use functions of torch, which take sizes as they are (torch.linspace(0, 1, T) in place of "
            "np.linspace(0, 1, T)), and recurrent layers or cells in a loop over all timesteps"
        )
        return PartialTrace(
            f"{name} reads a size as a number of Python{source_suffix(fixing[0])}, so that its program would hold for "
            f"one number of timesteps only: {instead}"
        )
    sizes = re.sub(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]", r"\1.size(\2)", condition.text)
    return PartialTrace(
        f"{name} branches on the number of timesteps: its trace is valid only if {sizes}. Write code that is the same "
        "for every number of timesteps"
    )


def noted_conversions(lines: list[str]) -> AbstractContextManager[None]:
    """Append the user's lines at which a symbolic size becomes a number, as in `np.ones(T)`."""

    def converted(own: torch.SymInt, original: Callable[[torch.SymInt], int]) -> int:
        line = calling_line() if own.node.maybe_as_int() is None else None
        lines.extend(() if line is None else (line,))
        return original(own)

    methods = ((name, getattr(torch.SymInt, name)) for name in ("__index__", "__int__"))
    return replaced_each((torch.SymInt, name, partialmethod(converted, method)) for name, method in methods)
