"""Outputs that share memory with weights: they are copied, so that callers may modify them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..bucketing.padding import storage_ptr


def storage_ptrs(weights: Iterable[torch.Tensor]) -> frozenset[int]:
    """Return the addresses of the weights' memory, for `copy_if_aliased`."""
    return frozenset(storage_ptr(weight) for weight in weights)


def copy_if_aliased(output: torch.Tensor, storages: frozenset[int]) -> torch.Tensor:
    """Copy an output that shares memory with a weight, so that callers may modify it.

    >>> weight = torch.ones(2)
    >>> _ = copy_if_aliased(weight[:1], storage_ptrs([weight])).zero_()
    >>> weight
    tensor([1., 1.])
    """
    return output.detach().clone() if storage_ptr(output) in storages else output
