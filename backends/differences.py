"""Differences of tensors, relative to a tolerance and to rounding errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from .interface import Tensors


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
    return torch.where(_half(tensor), torch.nextafter(tensor, tensor.new_tensor(math.inf)), tensor)


Answer = Callable[[list[torch.Tensor]], Tensors]


def allowed_rounding(answer: Answer, inputs: Tensors, results: Tensors) -> list[float]:
    """Return a bound of the rounding errors of each result: 64 times its change with `next_values` of the inputs."""
    return [64 * _distance(result, after) for result, after in zip(results, answer([*map(next_values, inputs)]))]


def change_with(
    shares: Sequence[float], answer: Answer, inputs: Tensors, results: Tensors, seed: int = 0
) -> list[float]:
    """Return the change of each result if floats move by shares of the largest one, some up and others down.

    It is infinite for whole numbers that change, and where other elements are finite. Each share is tried in two
    opposite directions.
    """
    ways = [(seed + place, each) for place, share in enumerate(shares) for each in (share, -share)]
    moved = [answer([_moved(tensor, each, draw) for tensor in inputs]) for draw, each in ways]
    return [max(_change(result, other) for other in others) for result, *others in zip(results, *moved)]


def _moved(tensor: torch.Tensor, share: float, seed: int) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return tensor
    largest = float(tensor.nan_to_num(0, 0, 0).abs().max()) or 1.0
    return torch.where(_half(tensor, seed), tensor + share * largest, tensor - share * largest)


def _half(tensor: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def _change(result: torch.Tensor, other: torch.Tensor) -> float:
    if result.shape != other.shape or not torch.equal(result.isfinite(), other.isfinite()):
        return math.inf
    if not result.is_floating_point():
        return 0.0 if torch.equal(result, other) else math.inf
    return _distance(result, other)


def _distance(result: torch.Tensor, other: torch.Tensor) -> float:
    if result.shape != other.shape or result.numel() == 0:
        return 0.0
    return float((other.double() - result.double()).abs().nan_to_num(0, 0, 0).max())
