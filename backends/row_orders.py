"""Operator `positions`: torch's own choice and order of elements, for each row at its own size.

Torch sorts without regard to the order of equal elements, and selects by several algorithms. Which of equal elements
comes first depends on their number, so that no sort of a padded row has the order of the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_CHOICES: Mapping[str, Callable[[Tensor, int, int, bool], Tensor]] = {
    "sort": lambda x, dim, number, largest: torch.sort(x, dim=dim, descending=largest)[1],
    "topk": lambda x, dim, number, largest: torch.topk(x, number, dim, largest, True)[1],
    "unsorted topk": lambda x, dim, number, largest: torch.topk(x, number, dim, largest, False)[1],
    "kthvalue": lambda x, dim, number, largest: torch.kthvalue(x, number, dim, True)[1],
    "median": lambda x, dim, number, largest: torch.median(x, dim, True)[1],
    "nanmedian": lambda x, dim, number, largest: torch.nanmedian(x, dim, True)[1],
    "mode": lambda x, dim, number, largest: torch.mode(x, dim, True)[1],
}
"""Functions of a tensor, a dimension, a number and a direction, which return positions in that dimension."""


def positions(x: Tensor, lengths: Tensor, numbers: Tensor, size: int, dim: int, choice: str, largest: bool) -> Tensor:
    """Return int64 positions in the dimension `dim`, which has `size` of them; 0 beyond those of a row.

    `x` has rows first, `lengths` int64[B] are their sizes in the dimension, `numbers` int64[B] how many to choose.
    """
    shape = list(x.shape)
    shape[dim] = size
    found = torch.zeros(shape, dtype=torch.int64)
    for row, chosen, length, number in zip(x, found, lengths.tolist(), numbers.tolist()):
        if length:
            own = _CHOICES[choice](row.narrow(dim - 1, 0, length), dim - 1, number, largest)
            chosen.narrow(dim - 1, 0, own.shape[dim - 1]).copy_(own)
    return found
