"""Rules of operators that sort a dimension: padding comes after every element of its row."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from .call import Call, Results
from .sizes import is_ragged
from .value import Batch, Value, normalized


def sort(batch: Batch, call: Call) -> Results:
    """Sort, or take the largest.

    No index is that of padding, also where an element has the value of padding.
    """
    value = call.value()
    dim = normalized(call["dim"], value.rank)
    if is_ragged(value.sizes[dim]):
        tensors, shared = _of_own_elements(batch, call, value, dim), False
    else:
        number = {"k": _number(batch, call)} if "k" in call.arguments else {}
        results = call.run(self=batch.rows_of(value), dim=dim + 1, **number)
        tensors, shared = [results] if isinstance(results, torch.Tensor) else list(results), value.shared
    values = tuple(
        Value(t.squeeze(0) if shared else t, sizes, shared) for t, sizes in zip(tensors, call.sizes, strict=True)
    )
    return values if len(values) > 1 else values[0]


def _number(batch: Batch, call: Call) -> Any:
    return batch.padded(sympy.sympify(call["k"]))


def _of_own_elements(batch: Batch, call: Call, value: Value, dim: int) -> list[torch.Tensor]:
    """Return the results of a call that sorts a dimension of which each row has its own size."""
    name, kind = call.target._schema.name, value.tensor.dtype
    descending = bool(call.get("largest", call.get("descending", False)))
    tensor = batch.masked(value, [dim], _last(kind, descending=descending))
    # ONNX has no stable sort, so that only a model's own call is one.
    options: dict[str, Any] = {"stable": True} if call.get("stable") else {}
    values, order = torch.sort(tensor, dim=dim + 1, descending=descending, **options)
    last = _padding_last(batch, value, dim, order)
    order = order.gather(dim + 1, last)
    if kind.is_floating_point and not descending:  # NaN comes after the infinity that fills the padding
        values = values.gather(dim + 1, last)
    elif name == "aten::topk":  # it needs no sort where its indices are not used
        values = call.run(self=tensor, dim=dim + 1, k=_number(batch, call), sorted=True)[0]
    if name == "aten::topk":
        values, order = (result.narrow(dim + 1, 0, _number(batch, call)) for result in (values, order))
    return [order] if name == "aten::argsort" else [values, order]


def _last(kind: torch.dtype, *, descending: bool) -> float:
    """Return a value that is sorted after all others, except that NaN comes after infinity."""
    if kind.is_floating_point:
        return float("-inf") if descending else float("inf")
    if kind is torch.bool:
        return not descending
    return torch.iinfo(kind).min if descending else torch.iinfo(kind).max


def _padding_last(batch: Batch, value: Value, dim: int, order: torch.Tensor) -> torch.Tensor:
    """Return the places that the elements of an order have if padding is moved behind all others.

    The others stay in their order. The sorted numbers all differ, so that the sort need not be stable.
    """
    size = value.sizes[dim]
    own = batch.own(size).reshape(-1, *[1] * value.rank)
    places = batch.positions(size).reshape(-1, *[1] * (value.rank - 1 - dim))
    return torch.sort(torch.where(order < own, places, places + batch.padded(size)), dim=dim + 1)[1]
