"""Differences of tensors, relative to a tolerance and to rounding errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch


def difference(ours: torch.Tensor, eager: torch.Tensor, tolerance: tuple[float, float]) -> tuple[float, float]:
    """Compute the largest |ours - eager| and its largest ratio to the tolerance.

    Equal elements, NaN and infinite ones included, have no difference; it is infinite where only one is finite.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), (0.1, 0.0))
    (0.5, 5.0)
    >>> difference(torch.tensor([float("-inf")]), torch.tensor([float("-inf")]), (0.0, 0.0))
    (0.0, 0.0)
    """
    if ours.shape != eager.shape:
        return float("inf"), float("inf")
    if eager.numel() == 0:
        return 0.0, 0.0
    a, b = ours.double(), eager.double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=float("inf"), posinf=float("inf"))
    allowed = tolerance[0] + tolerance[1] * b.abs()
    ratio = torch.where(same, 0.0, torch.where(error.isinf(), error, error / allowed))
    return float(error.max()), float(ratio.max())


def next_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the next greater float of each of half of the elements, drawn; all others, and integers, as they are.

    Equal values become different ones: a model that divides by their deviation follows from rounding errors alone.
    """
    if not tensor.is_floating_point():
        return tensor
    drawn = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    return torch.where(drawn, torch.nextafter(tensor, tensor.new_tensor(math.inf)), tensor)


def rounded_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return floats that differ by up to 64 rounding errors of the largest one; integers as they are."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    drawn = 2 * torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0), dtype=tensor.dtype) - 1
    return tensor + drawn * 64 * torch.finfo(tensor.dtype).eps * (float(tensor.abs().max()) or 1.0)


def allowed_rounding(
    answer: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> list[float]:
    """Return a bound of the rounding errors of each result: 64 times its change with `next_values` of the inputs.

    Whole numbers, such as the place of the largest value, have no such bound where `rounded_values` change them.
    """
    near = answer([*map(next_values, inputs)])
    has_whole = any(not result.is_floating_point() for result in results)
    rounded = answer([*map(rounded_values, inputs)]) if has_whole else near
    return [
        _rounding(result, after) if result.is_floating_point() else 0.0 if torch.equal(result, other) else math.inf
        for result, after, other in zip(results, near, rounded)
    ]


def _rounding(result: torch.Tensor, changed: torch.Tensor) -> float:
    if result.shape != changed.shape or result.numel() == 0:
        return 0.0
    return 64 * float((changed.double() - result.double()).abs().nan_to_num(0, 0, 0).max())
