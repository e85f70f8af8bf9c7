"""Branches of forward() on the number of timesteps, with their lines, while it is traced."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions

from ..errors import PartialTrace, calling_line, is_model_file, source_suffix
from .model_attributes import replaced


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
        value = self._at(timesteps)
        return value is not None and value != self.taken

    def is_decided_at(self, timesteps: int) -> bool:
        """Whether the condition is true or false for a number of timesteps."""
        return self._at(timesteps) is not None

    def _at(self, timesteps: int) -> bool | None:
        symbols = self.condition.free_symbols
        value = self.condition.xreplace(dict.fromkeys(symbols, sympy.Integer(timesteps)))
        return bool(value) if len(symbols) == 1 and value in (sympy.true, sympy.false) else None


@contextlib.contextmanager
def noted_branches(branches: list[Branch]) -> Iterator[None]:
    """Append the branches on conditions on sizes that the model's code takes, or that of a library."""
    original = torch.SymBool.__bool__

    def tested(own: torch.SymBool, ours: Callable[[Any], bool]) -> bool:
        condition = sympy.sympify(own.node.expr)  # before it is taken: an equation fixes the number of timesteps
        taken = ours(own)
        if is_model_file(sys._getframe(1).f_code.co_filename):
            branches.append(Branch(condition, taken, calling_line()))
        return taken

    with replaced(torch.SymBool, "__bool__", partialmethod(tested, original)):
        yield


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
