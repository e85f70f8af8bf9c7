"""Weights that are computed once from a model's own weights, and read by all graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import torch

from ...bucketing.padding import storage_ptr

Derive = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class DerivedWeights:
    """Results of functions of weights, by the weights' addresses.

    Weights that a program computes itself are not kept: their memory is used again for something else.
    """

    def __init__(self, own: Iterable[torch.Tensor]) -> None:
        """`own` are the model's weights on the device, which live as long as this object."""
        self._own = tuple(own)
        self._storages = {storage_ptr(weight) for weight in self._own}
        self._known: dict[Hashable, Sequence[torch.Tensor]] = {}

    def derive(self, kind: str, weights: Sequence[torch.Tensor], make: Derive) -> Sequence[torch.Tensor]:
        """Return `make(weights)`, from memory if it is of this kind and was made of the same weights before."""
        if any(storage_ptr(weight) not in self._storages for weight in weights):
            return make(weights)
        key = (kind, tuple([(weight.data_ptr(), weight.shape, weight.stride()) for weight in weights]))
        if key not in self._known:
            self._known[key] = made = make(weights)
            self._storages.update(storage_ptr(weight) for weight in made)
        return self._known[key]
