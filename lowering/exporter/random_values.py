"""Random values of inputs, and the comparison of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import TensorSpec

ANY_ID = 8
"""Bound of the ids for an input of unknown vocabulary, where the model is compared."""
_TOLERANCE = 1e-4  # far above rounding errors (1e-6), far below the effect of padding of size 1e3 or of a wrong carry


def random_tensor(
    spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator, *, unknown_ids: int = 2
) -> torch.Tensor:
    """Draw a tensor of an input within its range; without one, ids of its vocabulary, or below `unknown_ids`.

    In one that takes NaN, every second draw has some.
    """
    if spec.nan:
        values = random_tensor(replace(spec, nan=False), shape, generator, unknown_ids=unknown_ids)
        share = torch.rand((), generator=generator) - 0.5
        return values.masked_fill(torch.rand(shape, generator=generator) < share, math.nan)
    dtype = torch_dtype(spec)
    if spec.value_range is not None:
        least, largest = spec.value_range
        if dtype.is_floating_point:
            return (torch.rand(shape, generator=generator, dtype=torch.float64) * (largest - least) + least).to(dtype)
        return torch.randint(int(least), int(largest) + 1, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    limit = 2 if dtype is torch.bool else spec.vocabulary or unknown_ids
    return torch.randint(0, limit, shape, generator=generator).to(dtype)


def random_requests(
    inputs: Sequence[TensorSpec], lengths: Sequence[int], generator: torch.Generator
) -> list[list[torch.Tensor]]:
    """Draw the tensors of requests of these numbers of timesteps."""
    return [
        [random_tensor(spec, spec.item_sizes(length), generator, unknown_ids=ANY_ID) for spec in inputs]
        for length in lengths
    ]


HUGE = "of 1e30"
"""Values beside which others must be right; their own results may overflow in another order."""
ZEROS = "of 0 at half of the timesteps"
VALUE_KINDS = ("near 0", "of about 300", "about 50", "about -50", "that are equal", "with ties", ZEROS, HUGE)
"""Kinds of values that differ from those of a normal distribution: thresholds in a raw unit are far from 0."""


_INTEGERS = {"near 0": (-8, 8), "of about 300": (-300, 300), "about 50": (42, 58), "about -50": (-58, -42)}
"""Least and largest integer, where neither a range nor a vocabulary is known; smaller types wrap around."""
_SCALES = {"near 0": (0.01, 0), "of about 300": (300, 0), "about 50": (1, 50), "about -50": (1, -50), HUGE: (1e30, 0)}


def random_values_of(
    kind: str, spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator, unknown_ids: int
) -> torch.Tensor:
    """Draw values of one of `VALUE_KINDS`; in an input with a range, or of ids, random or equal ones."""
    values = random_tensor(spec, shape, generator, unknown_ids=unknown_ids)
    is_integer = not (values.is_floating_point() or values.dtype is torch.bool)
    if is_integer and kind in _INTEGERS and spec.vocabulary is None and spec.value_range is None:
        least, largest = _INTEGERS[kind]
        if kind == "of about 300" and values.element_size() <= 2:
            least, largest = torch.iinfo(values.dtype).min, torch.iinfo(values.dtype).max
        return torch.randint(least, largest + 1, shape, generator=generator).to(values.dtype)
    if kind == "that are equal":
        return values.reshape(-1)[:1].expand(values.numel()).reshape(shape).clone()
    if spec.value_range is not None or not values.is_floating_point():
        return values
    if kind == "with ties":
        return values.round()
    if kind == ZEROS:
        for dim in spec.item_time_dims:
            values.index_fill_(dim, torch.arange(0, values.shape[dim], 2), 0)
        return values
    scale, offset = _SCALES[kind]
    return values * scale + offset


def is_close(ours: torch.Tensor, theirs: torch.Tensor, rounding: float = 0.0) -> bool:
    """Whether two results of the same computation differ by rounding only, of which `rounding` is known."""
    return torch.allclose(ours.double(), theirs.double(), _TOLERANCE, _TOLERANCE + rounding, equal_nan=True)
