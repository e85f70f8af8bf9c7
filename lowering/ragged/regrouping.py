"""Reshapes in which a ragged dimension is not the outermost one, as of [2, T] to [2 * T].

Each row's elements then change their places in the padded tensor: they are found by their places in the row's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from .indexing_rules import taken
from .sizes import SizeExpr, is_ragged
from .value import Batch

Groups = Sequence[tuple[Sequence[SizeExpr], Sequence[SizeExpr]]]
"""Neighbouring dimensions before and after a reshape, in order; those of size 1 are left out."""


def reshaped(batch: Batch, tensor: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Reshape a tensor with rows, [B, ...], from the sizes of the groups to those after them."""
    tensor = tensor.reshape(batch.rows, *(batch.padded(sympy.prod(before)) for before, _ in groups))
    for index, (before, after) in enumerate(groups):
        if list(before) != list(after):
            tensor = taken(tensor, index + 1, _places(batch, before, after))
    return tensor


def _places(batch: Batch, before: Sequence[SizeExpr], after: Sequence[SizeExpr]) -> torch.Tensor:
    """Return where each element of the padded group after a reshape was before it, [B, N]."""
    count = batch.padded(sympy.prod(after))
    return _raveled(batch, before, _unraveled(batch, after, torch.arange(count).unsqueeze(0)))


def _unraveled(batch: Batch, sizes: Sequence[SizeExpr], places: torch.Tensor) -> torch.Tensor:
    """Return the places in each row's own tensor, [B, N], of places in the padded one."""
    own, stride = torch.zeros_like(places), torch.ones_like(batch.lengths).unsqueeze(1)
    for size in reversed(sizes):
        padded = batch.padded(size)
        own = own + (places % padded) * stride
        places, stride = places // padded, stride * _own(batch, size)
    return own


def _raveled(batch: Batch, sizes: Sequence[SizeExpr], own: torch.Tensor) -> torch.Tensor:
    """Return the places in the padded tensor, [B, N], of places in each row's own one; any for those beyond it."""
    places, stride = torch.zeros_like(own), 1
    for size in reversed(sizes):
        places = places + (own % _own(batch, size)) * stride
        own, stride = own // _own(batch, size), stride * batch.padded(size)
    return places


def _own(batch: Batch, size: SizeExpr) -> torch.Tensor:
    """Return a size of each row's own tensor, 1 or more, [B, 1] or [1, 1]."""
    own = batch.own(size) if is_ragged(size) else batch.lengths.new_full((1,), int(size))
    return own.clamp(min=1).unsqueeze(1)
