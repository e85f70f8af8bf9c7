"""Numbers of timesteps for which the trace of one request does not hold, by the exporter's conditions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partialmethod

import torch

from ..errors import PartialTrace, calling_line, source_suffix
from ..exporter.model_attributes import replaced_each
from ..exporter.shape_conditions import Condition, ShapeConditions
from ..exporter.timestep_branches import Branch, branch_error

_BATCHES = (1, 2, 5)
_CHUNKS = re.compile(r"range\([^,]+,[^,]+,")
"""A loop over chunks of the timesteps, as in `range(0, T, 512)`."""


def lengths_outside(
    exported: torch.export.ExportedProgram,
    name: str,
    sizes: Mapping[str, Sequence[int | str]],
    lengths: Sequence[int],
    branches: Sequence[Branch] = (),
    fixing: Sequence[str] = (),
) -> set[int]:
    """Return numbers of timesteps that the exporter excluded by an inequation, or as too few.

    Most of them are excluded because a size would be 1, which changes nothing; so they are to be compared with the
    model. `sizes` are the shapes of the inputs by name. Every condition is evaluated for all `lengths`. `fixing` are
    the lines at which sizes become numbers.

    Raises `BranchOnTimesteps`: the program holds only for some numbers of timesteps, such as odd ones; names the line.
    Raises `PartialTrace`: the same; names the line that reads a size as a number, or the condition.
    """
    lowest = max((int(bounds.lower) for bounds in exported.range_constraints.values()), default=1)
    conditions = ShapeConditions(exported, sizes)
    outside: set[int] = set()
    excluded: dict[int, Condition] = {}
    for batch, time in itertools.product(_BATCHES, lengths):
        for condition in conditions.failing(batch, time):
            if condition.is_equation or (time >= lowest and not condition.is_inequation):
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

    return replaced_each(
        (torch.SymInt, name, partialmethod(converted, getattr(torch.SymInt, name))) for name in ("__index__", "__int__")
    )
