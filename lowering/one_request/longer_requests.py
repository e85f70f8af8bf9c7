"""Trace of one request, for a model that does something else with short requests."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ...config.schema import ServingConfig
from ..errors import LoweringError, PartialTrace
from ..exporter.timestep_branches import BranchOnTimesteps
from .single_request import SingleExport, example_timesteps, export_single


def export_longer(
    model: torch.nn.Module, config: ServingConfig, shortest: int, timesteps: int | None = None, traces: int = 4
) -> SingleExport:
    """Export forward() for one request of `shortest` timesteps, or of those from which it has one form.

    These must be within the shortest bucket. A size that is 1 in the trace, such as the only frame of few timesteps,
    is taken for a constant, so that a trace of more timesteps may hold for all. At most `traces` are made.

    Raises `PartialTrace`: there is no such number of timesteps.
    Raises `LoweringError`: the graph depends on data.
    """
    timesteps = example_timesteps(config, shortest) if timesteps is None else timesteps
    try:
        return export_single(model, config, shortest, timesteps)
    except PartialTrace as error:
        first = last_form(error.excluded, config.longest)
        is_periodic = isinstance(error, BranchOnTimesteps) and error.on_remainder
        is_unrolled = len(error.excluded) >= config.longest - shortest  # for one number of timesteps, as a loop is
        if traces == 1 or first == config.longest or is_periodic or is_unrolled:
            raise
        if config.longest in error.excluded:
            timesteps = example_timesteps(config, first)
        elif first <= config.grid.lengths[0]:
            shortest, timesteps = first, max(timesteps, example_timesteps(config, first))
        else:
            raise naming_fewest(error, first, config.longest) from error.__cause__
    return export_longer(model, config, shortest, timesteps, traces - 1)


def last_form(excluded: Collection[int], longest: int) -> int:
    """Return the fewest timesteps from which all numbers up to `longest` are excluded, or none is.

    >>> last_form({1, 2, 3}, longest=8)
    4
    >>> last_form({6, 7, 8}, longest=8)
    6
    >>> last_form({2, 4, 6, 8}, longest=8)
    8
    """
    last = longest in excluded
    return next((n + 1 for n in range(longest - 1, 0, -1) if (n in excluded) != last), 1)


def naming_fewest(error: LoweringError, first: int, longest: int) -> LoweringError:
    """Add to the error the fewest timesteps that can be served, unless most requests are shorter."""
    if 2 * first <= longest:
        served = (
            f"Requests of {first} timesteps or more take the same branches: without buckets of fewer timesteps they "
            "are served, and shorter ones are refused"
        )
        error.args = (f"{error}. {served}",)
    return error
