"""Shapes that the exporter excludes although the program is right in them.

The exporter assumes that a size is not 1 unless it is a constant, as a size of 1 would be broadcast; so it excludes
the fewest timesteps of a model with strides. The program is compared with the model in the excluded shapes, and the
exporter's conditions on them are dropped if both agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch.utils._sympy.value_ranges import ValueRanges

from ..config.schema import ServingConfig
from .errors import LoweringError
from .exporter.shape_conditions import ShapeConditions, batch_sizes_of
from .one_request.comparison import Comparison

_MOST_LENGTHS = 8
"""Excluded numbers of timesteps that are compared; a program with more of them keeps its conditions.

Of those that inequations alone exclude, as many are compared, spread over all of them: the exporter excludes all even
numbers for `x[:, : T // 2 * 2]`, because that has gaps in memory if T is odd.
"""
_ROWS = (1, 2, 5)


def include_excluded_shapes(comparison: Comparison, shortest: int) -> None:
    """Drop the conditions of a program that exclude a shape, if it is right in all excluded shapes."""
    conditions = ShapeConditions(comparison.exported, batch_sizes_of(comparison.inputs))
    excluded = _excluded_lengths(conditions, comparison.config, shortest)
    unequal = [time for time in excluded if _only_inequations(conditions, time)]
    others = [time for time in excluded if time not in unequal]
    if not excluded or len(others) > _MOST_LENGTHS:
        return
    with contextlib.suppress(LoweringError), _without_conditions(comparison.exported, conditions, excluded, shortest):
        run = comparison.exported.module()
        for time in (*others, *_spread(unequal)):
            for rows in _ROWS:
                comparison.check(run, [max(shortest, time - row) for row in range(rows)], time)


def _excluded_lengths(conditions: ShapeConditions, config: ServingConfig, shortest: int) -> list[int]:
    """Return the numbers of timesteps that the exporter's conditions exclude, for some number of rows."""
    batches = served_batches(config)
    lengths = range(shortest, config.longest + 1)
    return [time for time in lengths if not all(conditions.holds(batch, time) for batch in batches)]


def _only_inequations(conditions: ShapeConditions, time: int) -> bool:
    return all(condition.is_inequation for rows in _ROWS for condition in conditions.failing(rows, time))


def _spread(lengths: Sequence[int]) -> list[int]:
    """Return the first and the last of ascending lengths, and some between them.

    >>> _spread(range(4, 25, 2))
    [4, 6, 10, 12, 16, 18, 22, 24]
    """
    last, gaps = len(lengths) - 1, _MOST_LENGTHS - 1
    places = range(len(lengths)) if last <= gaps else [round(k * last / gaps) for k in range(gaps + 1)]
    return [lengths[place] for place in places]


def served_batches(config: ServingConfig) -> Sequence[int]:
    """Return numbers of rows to evaluate conditions for: they exclude one row or two, or set a bound."""
    return sorted({1, 2, config.grid.batches[-1]})


@contextlib.contextmanager
def _without_conditions(
    program: torch.export.ExportedProgram, conditions: ShapeConditions, excluded: Sequence[int], shortest: int
) -> Iterator[None]:
    """Drop the conditions that fail for the excluded numbers of timesteps; an error within restores them."""
    guards, bounds = list(program._guards_code), dict(program._range_constraints)
    failing = {condition.text for time in excluded for rows in _ROWS for condition in conditions.failing(rows, time)}
    program._guards_code = [text for text in guards if text not in failing]
    program._range_constraints.update(
        {symbol: ValueRanges(min(own.lower, shortest), own.upper) for symbol, own in bounds.items()}
    )
    try:
        yield
    except BaseException:
        program._guards_code = guards
        program._range_constraints.update(bounds)
        raise
