"""Lists that repeat a tensor once for each timestep, as `torch.cat([h] * x.size(1), 1)` takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


class RepeatedList(list[torch.Tensor]):
    """A list of one tensor, repeated a symbolic number of times.

    Whoever reads it as a list gets as many elements as the trace has timesteps.
    """

    def __init__(self, item: torch.Tensor, times: torch.SymInt) -> None:
        super().__init__([item])
        self.item, self.times = item, times

    def whole(self) -> list[torch.Tensor]:
        """Return the elements, whose number is then fixed."""
        return [self.item] * int(self.times)

    def __len__(self) -> int:
        return int(self.times)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.whole())

    def __getitem__(self, index: Any) -> Any:
        return self.whole()[index]

    def __add__(self, other: list[Any]) -> list[Any]:
        return self.whole() + list(other)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return list(other) + self.whole()


def repeated(values: object, times: torch.SymInt) -> RepeatedList | None:
    """Return `values * times` for a list or tuple of one tensor; None for other values."""
    if isinstance(values, (list, tuple)) and len(values) == 1 and isinstance(values[0], torch.Tensor):
        return RepeatedList(values[0], times)
    return None


def joined(name: str, tensors: RepeatedList, dim: int = 0) -> torch.Tensor:
    """Return `torch.stack` or `torch.cat` of a repeated tensor, by its name."""
    item = tensors.item
    if name == "stack":
        place = dim % (item.dim() + 1)
        sizes = [-1] * item.dim()
        return item.unsqueeze(place).expand(*sizes[:place], tensors.times, *sizes[place:])
    repeats: list[Any] = [1] * item.dim()
    repeats[dim % item.dim()] = tensors.times
    return item.repeat(*repeats)
