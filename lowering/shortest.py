"""Fewest timesteps that a model takes, found by calling it."""

from __future__ import annotations

import bisect
from collections.abc import Callable

import torch

from ..config.schema import ServingConfig
from .eager_call import call_eagerly, copy_of
from .exporter.export import bind_arguments, example_tensor

_ALL_TRIED = 64


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

    return first_accepted(takes, config.longest)


def first_accepted(takes: Callable[[int], bool], longest: int) -> int:
    """Return the first length of 1 to `longest` for which `takes` is true, else 1.

    Each length to 64 is tried. Beyond, as for a model of samples of sound, `takes` is expected to be true for all
    lengths from the first one on.

    >>> first_accepted(lambda length: length >= 5, longest=16)
    5
    >>> first_accepted(lambda length: length >= 991, longest=16_000)
    991
    >>> first_accepted(lambda length: False, longest=16)
    1
    >>> first_accepted(lambda length: length % 320 == 0, longest=3_200)
    1
    """
    first = next((length for length in range(1, min(longest, _ALL_TRIED) + 1) if takes(length)), None)
    return first or _first_beyond(takes, longest) or 1


def _first_beyond(takes: Callable[[int], bool], longest: int) -> int | None:
    """Return the first accepted length of more than those that are tried one by one.

    None, too, if the next one is refused: then the model takes some lengths only, such as multiples of a frame.
    """
    refused, accepted = _ALL_TRIED, 2 * _ALL_TRIED
    while accepted < longest and not takes(accepted):
        refused, accepted = accepted, 2 * accepted
    accepted = min(accepted, longest)
    if accepted <= refused or not takes(accepted):
        return None
    first = bisect.bisect_left(range(accepted), True, lo=refused + 1, key=takes)
    return first if takes(first + 1) else None
