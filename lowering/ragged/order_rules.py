"""Rules of operators that sort or choose by value: equal elements come in the order of the row alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from ...backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operator `positions`
from .sizes import is_ragged, product
from .value import Batch, Call, Results, Value, in_dim, unsqueezed

_ONE = ("median", "nanmedian", "kthvalue", "mode")
"""Operators that choose one element."""


def ordered(batch: Batch, call: Call) -> Results:
    """Sort, or choose by value. No index is that of padding, also where an element has the value of padding."""
    value, name = call.value(), call.target._schema.name.removeprefix("aten::")
    if "dim" not in call.arguments:  # the median of all elements
        return call.result(_one_value(batch, call, value, range(value.rank), name).squeeze(1))
    dim, number = call.dim, sympy.sympify(call.get("k") or 0)
    if not is_ragged(value.sizes[dim]) and not is_ragged(number):
        plain = {"k": int(number)} if "k" in call.arguments else {}
        return call.results(call.run(self=batch.rows_of(value), dim=dim + 1, **plain), shared=value.shared)
    if name in ("sort", "argsort") and call.get("stable"):
        return call.results(_stable(batch, call, value, dim)[name == "argsort" :], shared=False)
    if 1 not in call.read and not call.sign_sensitive and name not in ("argsort", "mode"):
        values = _one_value(batch, call, value, (dim,), name) if name in _ONE else _values(batch, call, value, dim)
        results = [values, torch.zeros_like(values, dtype=torch.int64)]
    else:
        chosen = _positions(batch, call, value, dim, name)
        results = [chosen] if name == "argsort" else [batch.every_row(value).gather(dim + 1, chosen), chosen]
    if name in _ONE and not call["keepdim"]:
        results = [result.squeeze(dim + 1) for result in results]
    return call.results(results, shared=False)


def _positions(batch: Batch, call: Call, value: Value, dim: int, name: str) -> torch.Tensor:
    size = value.sizes[dim]
    number = sympy.sympify(call.get("k") or 0)
    chosen = 1 if name in _ONE else batch.padded(number if name == "topk" else size)
    choice = {"argsort": "sort", "topk": "topk" if call.get("sorted", True) else "unsorted topk"}.get(name, name)
    # A row that fills the batch has one timestep, and may be asked for more.
    lengths = batch.own(size)
    numbers = torch.minimum(batch.own(number), lengths)
    found: torch.Tensor = torch.ops.neuron_lstm.positions.default(
        batch.every_row(value), lengths, numbers, chosen, dim + 1, choice, _descends(call)
    )
    return found


def _descends(call: Call) -> bool:
    return bool(call.get("largest", call.get("descending", False)))


def _filled(batch: Batch, value: Value, dims: Sequence[int], fill: float) -> torch.Tensor:
    """Return every row with a number beyond its own elements."""
    return batch.masked(value, dims, fill).expand(batch.rows, *batch.padded_sizes(value.sizes))


def _real(batch: Batch, value: Value, dims: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of each row's own elements, [B], and which of them are NaN, false for padding."""
    return batch.own(product([value.sizes[dim] for dim in dims])), _filled(batch, value, dims, 0).isnan()


def _values(batch: Batch, call: Call, value: Value, dim: int) -> torch.Tensor:
    """Return the values in order, without positions: equal ones need no order among themselves."""
    descending = _descends(call)
    tensor = _filled(batch, value, [dim], float("-inf") if descending else float("inf"))
    if "k" in call.arguments:  # some engines have no sort
        number = batch.padded(sympy.sympify(call["k"]))
        values: torch.Tensor = call.run(self=tensor, dim=dim + 1, k=number, sorted=True)[0]
    else:
        values = torch.sort(tensor, dim=dim + 1, descending=descending)[0]
    if descending or not value.tensor.is_floating_point():
        return values
    count, missing = _real(batch, value, [dim])  # NaN comes after the infinity that fills the padding
    places = in_dim(torch.arange(values.shape[dim + 1]).unsqueeze(0), dim + 1, value.rank + 1)
    count = unsqueezed(count, value.rank) - missing.sum(dim + 1, keepdim=True)
    return torch.where(places < count, values, float("nan"))


def _one_value(batch: Batch, call: Call, value: Value, dims: Sequence[int], name: str) -> torch.Tensor:
    """Return the median or the k-th value of dimensions: all of them become one that follows the rows."""
    count, missing = _real(batch, value, dims)
    tensor, dim = _filled(batch, value, dims, float("inf")), dims[0] + 1
    if "dim" not in call.arguments:
        tensor, missing, dim = tensor.reshape(batch.rows, -1), missing.reshape(batch.rows, -1), 1
    count, lacking = unsqueezed(count, tensor.dim() - 1), missing.sum(dim, keepdim=True)
    real = count - lacking
    if name == "kthvalue":
        place: Any = unsqueezed(batch.own(sympy.sympify(call["k"])), tensor.dim() - 1) - 1
        none = place >= real
    else:
        place = ((real if name == "nanmedian" else count) - 1) // 2
        none = (real == 0) if name == "nanmedian" else (real == 0) | (lacking > 0)
    # NaN comes after the infinity that fills the padding.
    places = place.clamp(min=0).expand_as(tensor.narrow(dim, 0, 1))
    found = torch.sort(tensor, dim=dim)[0].gather(dim, places)
    return torch.where(none, float("nan"), found) if value.tensor.is_floating_point() else found


def _stable(batch: Batch, call: Call, value: Value, dim: int) -> Sequence[torch.Tensor]:
    """Sort padded rows: what is equal keeps its order, so that padding needs only to be like the last element."""
    descending = _descends(call)
    last = float("-inf") if descending else float("nan") if value.tensor.is_floating_point() else float("inf")
    return torch.sort(_filled(batch, value, [dim], last), dim=dim + 1, descending=descending, stable=True)
