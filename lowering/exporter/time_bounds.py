"""Numbers of timesteps beyond the buckets for which a model does something else than its program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from .shape_conditions import ShapeConditions
from .timestep_branches import Branch

_CHECKED = 1000
"""Numbers of timesteps that are checked one by one."""
_MANY = 1 << 40
"""More timesteps than any session has."""


@dataclass(frozen=True)
class TimeBound:
    """Numbers of timesteps beyond the buckets for which a program is not known to hold."""

    line: str | None
    """The line of the branch that they take otherwise, if it is known."""


def find_time_bound(
    conditions: ShapeConditions, branches: Sequence[Branch], *, rows: int, longest: int
) -> TimeBound | None:
    """Return a bound that the exporter's conditions set beyond the longest sequence that is served.

    None: the program holds for any number of timesteps. `rows` is a number of rows for which it holds.
    """
    written = conditions.numbers.union(*(_numbers(branch) for branch in branches))
    near = {near for number in written for near in (number, number + 1) if near > longest}
    numbers = sorted({*range(longest + 1, longest + 1 + _CHECKED), *near, _MANY})
    if all(conditions.holds(rows, number) for number in numbers):
        return None
    over_time = [branch for branch in branches if branch.condition.free_symbols <= conditions.time_symbols]
    return TimeBound(next((branch.line for branch in over_time if any(map(branch.differs_at, numbers))), None))


def _numbers(branch: Branch) -> set[int]:
    return {int(number) for number in branch.condition.atoms(sympy.Integer)}
