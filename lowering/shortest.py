"""Fewest timesteps that a model takes, found by calling it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from ..config.schema import ServingConfig
from .eager_call import call_eagerly
from .errors import LoweringError, raising_line, source_suffix
from .exporter.export import bind_arguments, example_tensor

_MOST_TRIED = 64


def shortest_length(model: torch.nn.Module, config: ServingConfig) -> int:
    """Return the fewest timesteps of a request that `model` takes in eager mode.

    It is 1 if the model fails on all that are tried.
    """
    tried = _copy_of(model)

    def takes(length: int) -> bool:
        tensors = [example_tensor(spec, 1, length) for spec in config.input_specs]
        try:
            call_eagerly(tried, bind_arguments(config, tensors, torch.tensor([length])))
        except Exception:  # noqa: BLE001 - the user's code; its message is reported where the model is traced
            return False
        return True

    return first_accepted(takes, min(config.longest, _MOST_TRIED))


def eager_failure(model: torch.nn.Module, config: ServingConfig) -> LoweringError | None:
    """Return the error of a model that fails in eager mode at each bucket length; else None."""
    tried, failure = _copy_of(model), None
    for length in config.grid.lengths:
        tensors = [example_tensor(spec, 1, length) for spec in config.input_specs]
        try:
            call_eagerly(tried, bind_arguments(config, tensors, torch.tensor([length])))
        except Exception as error:  # noqa: BLE001 - the user's code
            failure = failure or LoweringError(
                f"{type(model).__name__} fails in eager mode on one request of {length} timesteps, a batch of 1"
                f"{source_suffix(raising_line(error))}: {type(error).__name__}: {error}"
            )
        else:
            return None
    return failure


def _copy_of(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy where one can be made: a call may change the model, which is still to be traced."""
    try:
        return copy.deepcopy(model)
    except Exception:  # noqa: BLE001 - whatever a module of the user's own raises when it is copied
        return model


def first_accepted(takes: Callable[[int], bool], longest: int) -> int:
    """Return the first length of 1 to `longest` for which `takes` is true, else 1.

    >>> first_accepted(lambda length: length >= 5, longest=16)
    5
    >>> first_accepted(lambda length: False, longest=16)
    1
    """
    return next((length for length in range(1, longest + 1) if takes(length)), 1)
