"""Rule of the median: the lower one of the middle of the row's own elements."""

from __future__ import annotations

import sympy
import torch
from torch.utils._sympy import functions

from .indexing_rules import taken
from .value import Batch, Call, NoRule, Results, normalized


def median(batch: Batch, call: Call) -> Results:
    """Sort with the padding last, and take the middle.

    Raises:
        NoRule: the place of the median is read, which depends on how equal elements are stored.
    """
    if 1 in call.read:
        raise NoRule("the place of a median, which depends on how equal elements are stored")
    value = call.value()
    is_over_all = "dim" not in call.arguments
    dims = range(value.rank) if is_over_all else (normalized(call["dim"], value.rank),)
    dim = 1 if is_over_all else dims[0] + 1

    def filled(number: float) -> torch.Tensor:
        tensor = batch.masked(value, dims, number).expand(batch.rows, *batch.padded_sizes(value.sizes))
        return tensor.reshape(batch.rows, -1) if is_over_all else tensor

    is_float = value.tensor.dtype.is_floating_point
    last = float("inf") if is_float else torch.iinfo(value.tensor.dtype).max
    middle = batch.own(functions.FloorDiv(sympy.prod([value.sizes[dim] for dim in dims]) - 1, 2))
    result = taken(torch.sort(filled(last), dim=dim)[0], dim, middle.unsqueeze(1))
    if is_float:  # NaN is sorted behind the padding
        result = torch.where(torch.isnan(filled(0.0)).any(dim, keepdim=True), float("nan"), result)
    result = result if call.get("keepdim") else result.squeeze(dim)
    return call.results([result, torch.zeros_like(result, dtype=torch.int64)][: len(call.sizes)], shared=False)
