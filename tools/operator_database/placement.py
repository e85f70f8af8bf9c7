"""Dimensions of a sample's tensors as batch, time and features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchserve_neuron_lstm.bucketing.shapes import DType, TensorSpec

from .database import Sample

Sizes = tuple[Any, ...]
"""Sizes of a request's tensor: numbers, `batch` for the dimension of one row, and `time`."""


@dataclass(frozen=True)
class Placement:
    """Roles of the dimensions of each tensor, and the places of the number of timesteps among the arguments."""

    shapes: tuple[Sizes, ...]
    numbers: tuple[int, ...] = ()

    @property
    def has_time(self) -> bool:
        """Whether some tensor has timesteps."""
        return any("time" in shape for shape in self.shapes)

    def specs(self, sample: Sample) -> list[TensorSpec]:
        """Return layouts of inputs; those without a dimension for the rows get one in front."""
        return [
            TensorSpec(f"x{number}", _dtype(tensor), shape if "batch" in shape else ("batch", *shape))
            for number, (tensor, shape) in enumerate(zip(sample.tensors, self.shapes, strict=True))
        ]


def _dtype(tensor: torch.Tensor) -> DType:
    return str(tensor.dtype).removeprefix("torch.")  # type: ignore[return-value]  # or refused before


def placements(sample: Sample) -> Iterator[list[Placement]]:
    """Yield alternatives, of which the first that eager mode takes is meant.

    Each dimension of the first tensor is the timesteps, with the rows in front or in place of another dimension. Other
    tensors have timesteps where their size is that of the first one's.
    """
    first = sample.tensors[0]
    yield [Placement(tuple(tuple(tensor.shape) for tensor in sample.tensors))]
    for time in range(first.dim()):
        if first.shape[time] < 1:
            continue
        batches: list[int | None] = [None] if first.dim() == 1 else [None, (time + 1) % first.dim()]
        if first.dim() > 2:
            batches.append((time - 1) % first.dim())
        for batch in batches:
            yield [*_alternatives(sample, batch, time)]


def _alternatives(sample: Sample, batch: int | None, time: int) -> Iterator[Placement]:
    first = sample.tensors[0]
    chosen = {time: "time"} | ({} if batch is None else {batch: "batch"})
    own = tuple(chosen.get(dim, size) for dim, size in enumerate(first.shape))
    others = sample.tensors[1:]
    from_right = {dim - first.dim(): name for dim, name in chosen.items()}
    options = [
        tuple(_named(tensor, from_right, first, right=True) for tensor in others),
        tuple(_named(tensor, chosen, first, right=False) for tensor in others),
        tuple(tuple(tensor.shape) for tensor in others),
        tuple(_square(tensor, first.shape[time]) for tensor in others),
    ]
    numbers = tuple(
        place for place, leaf in enumerate(sample.leaves) if type(leaf) is int and leaf == first.shape[time] != 0
    )
    yield from dict.fromkeys(Placement((own, *shapes), places) for shapes in options for places in ((), numbers))


def _square(tensor: torch.Tensor, timesteps: int) -> Sizes:
    """Return sizes with timesteps in up to two dimensions, as a matrix of weights between timesteps has them."""
    if list(tensor.shape).count(timesteps) > 2:
        return tuple(tensor.shape)
    return tuple("time" if size == timesteps else size for size in tensor.shape)


def _named(tensor: torch.Tensor, chosen: dict[int, str], first: torch.Tensor, *, right: bool) -> Sizes:
    shape: list[Any] = list(tensor.shape)
    for dim, name in chosen.items():
        there = -len(shape) <= dim if right else dim < len(shape)
        if there and shape[dim] == first.shape[dim] and name not in shape:
            shape[dim] = name
    return tuple(shape)
