"""Fewest timesteps that a model takes, found by calling it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..config.schema import ServingConfig
from .eager_call import call_eagerly, copy_of
from .exporter.export import bind_arguments, example_tensor

_MOST_TRIED = 64


def shortest_length(model: torch.nn.Module, config: ServingConfig) -> int:
    """Return the fewest timesteps of a request that `model` takes in eager mode.

    It is 1 if the model fails on all that are tried.
    """
    tried = copy_of(model)

    def takes(length: int) -> bool:
        tensors = [example_tensor(spec, 1, length) for spec in config.input_specs]
        try:
            call_eagerly(tried, bind_arguments(config, tensors, torch.tensor([length])))
        except Exception:  # noqa: BLE001 - the user's code; its message is reported where the model is traced
            return False
        return True

    return first_accepted(takes, min(config.longest, _MOST_TRIED))


def first_accepted(takes: Callable[[int], bool], longest: int) -> int:
    """Return the first length of 1 to `longest` for which `takes` is true, else 1.

    >>> first_accepted(lambda length: length >= 5, longest=16)
    5
    >>> first_accepted(lambda length: False, longest=16)
    1
    """
    return next((length for length in range(1, longest + 1) if takes(length)), 1)
