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
    config, batches = comparison.config, served_batches(comparison.config)
    lengths = range(shortest, config.longest + 1)
    excluded = [time for time in lengths if not all(conditions.holds(batch, time) for batch in batches)]
    failing = {time: [condition for rows in _ROWS for condition in conditions.failing(rows, time)] for time in excluded}
    unequal = [time for time in excluded if all(condition.is_inequation for condition in failing[time])]
    others = [time for time in excluded if time not in unequal]
    if not excluded or len(others) > _MOST_LENGTHS:
        return
    with (
        contextlib.suppress(LoweringError),
        _without_conditions(comparison.exported, {c.text for own in failing.values() for c in own}, shortest),
    ):
        run = comparison.exported.module()
        for time in (*others, *_spread(unequal)):
            for rows in _ROWS:
                comparison.check(run, [max(shortest, time - row) for row in range(rows)], time)


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
def _without_conditions(program: torch.export.ExportedProgram, failing: set[str], shortest: int) -> Iterator[None]:
    """Drop conditions, and bounds above the fewest timesteps; an error within restores them."""
    guards, bounds = list(program._guards_code), dict(program._range_constraints)
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
