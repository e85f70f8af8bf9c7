"""Rules of products that sum over a dimension: zeros stand beyond a row's own size on both sides."""

from __future__ import annotations

from typing import Any

import torch

from .sizes import is_ragged
from .value import Batch, Call, NoRule, Results, Value, in_dim, unsqueezed, with_ones, without_ones


def linear(batch: Batch, call: Call) -> Results:
    """Apply a layer to the last dimension. Raises `NoRule`: the layer has weights for each timestep."""
    value, weight, bias = call.value("input"), call.value("weight"), call.get("bias")
    if is_ragged(value.sizes[-1]):
        raise NoRule("a layer with weights for each timestep")
    if weight.shared and (bias is None or bias.shared):
        rows, ones = without_ones(value, 1)  # so that an engine sees the layer behind a recurrence
        return Value(with_ones(call.run(input=rows.tensor), ones, shared=value.shared), call.sizes[0], value.shared)
    product = _matmul(batch, value, Value(weight.tensor.mT, weight.sizes[::-1], weight.shared), len(call.sizes[0]))
    if bias is not None:
        product = product + batch.rows_of(bias).reshape(-1, *[1] * (product.dim() - 2), int(bias.sizes[0]))
    return call.result(product)


def bilinear(batch: Batch, call: Call) -> Results:
    """Apply a layer to the last dimensions of two tensors."""
    first, second, weight, bias = (call.get(name) for name in ("input1", "input2", "weight", "bias"))
    if not weight.shared or (bias is not None and not bias.shared):
        raise NoRule("a bilinear layer whose weights are computed from the request")
    return call.result(call.run(input1=batch.every_row(first), input2=batch.every_row(second)))


def matmul(batch: Batch, call: Call) -> Results:
    """Multiply matrices, vectors or batches of matrices."""
    first, second = list(call.values())
    shared = first.shared and second.shared and not is_ragged(first.sizes[-1])
    product = _matmul(batch, first, second, len(call.sizes[0]))
    return Value(product.squeeze(0) if shared else product, call.sizes[0], shared)


def _matmul(batch: Batch, first: Value, second: Value, rank: int) -> torch.Tensor:
    inner = second.rank - 2 if second.rank > 1 else 0
    if is_ragged(first.sizes[-1]):
        a, b = batch.masked(first, [first.rank - 1], 0), batch.masked(second, [inner], 0)
    else:
        a, b = batch.rows_of(first), batch.rows_of(second)
        if second.shared and second.rank <= 2:
            b = second.tensor  # a matrix for all rows: one product
    vector_first, vector_second = first.rank == 1, second.rank == 1
    a = a.unsqueeze(1) if vector_first else a
    b = b.unsqueeze(-1) if vector_second else b
    wanted = 1 + max(rank + vector_first + vector_second, 2)
    a = unsqueezed(a, wanted - a.dim())
    b = unsqueezed(b, wanted - b.dim()) if b.dim() > 2 else b
    product = torch.matmul(a, b)
    if vector_first:
        product = product.squeeze(-1 if vector_second else -2)
    return product.squeeze(-1) if vector_second else product


def add_product(batch: Batch, call: Call) -> Results:
    """Multiply two matrices and add a third. Raises `NoRule`: the product is scaled."""
    if call.get("alpha", 1) != 1 or call.get("beta", 1) != 1:
        raise NoRule("a product that is scaled")
    names = [name for name in ("mat1", "batch1", "mat2", "batch2", "vec", "mat") if name in call.arguments]
    first, second = (call.value(name) for name in names)
    product = _matmul(batch, first, second, len(call.sizes[0]))
    added = batch.rows_of(call.value())
    return call.result(product + unsqueezed(added, product.dim() - added.dim()))


def einsum(batch: Batch, call: Call) -> Results:
    """Sum products by letters; rows are a letter of their own.

    Raises:
        NoRule: the equation has no explicit result, or an ellipsis.
    """
    equation: str = call["equation"].replace(" ", "")
    if "..." in equation or "->" not in equation:
        raise NoRule("an einsum without an explicit result, or with an ellipsis")
    inputs, output = equation.split("->")
    letter = next(c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in equation)
    tensors: list[Any] = []
    letters: list[str] = []
    for own, value in zip(inputs.split(","), call["tensors"], strict=True):
        summed = [dim for dim, name in enumerate(own) if name not in output and is_ragged(value.sizes[dim])]
        if value.shared and not summed:
            tensors.append(value.tensor)
            letters.append(own)
        else:
            masked = batch.masked(value, summed, 0)
            tensors.append(masked.squeeze(0) if masked.shape[0] == 1 and value.shared else masked)
            letters.append(own if masked.shape[0] == 1 and value.shared else letter + own)
    rows = any(name.startswith(letter) for name in letters)
    result = torch.einsum(f"{','.join(letters)}->{letter if rows else ''}{output}", *tensors)
    return Value(result, call.sizes[0], shared=not rows)


def attention(batch: Batch, call: Call) -> Results:
    """Attend to the row's own keys."""
    query, key, value = (call.value(name) for name in ("query", "key", "value"))
    mask: Value | None = call.get("attn_mask")
    tensors = [batch.every_row(item) for item in (query, key, value)]
    keys = key.sizes[-2]
    if not is_ragged(keys):
        own = None if mask is None else unsqueezed(batch.every_row(mask), query.rank - mask.rank)
        return call.result(call.run(query=tensors[0], key=tensors[1], value=tensors[2], attn_mask=own))
    allowed = in_dim(batch.valid(keys), query.rank, query.rank + 1)
    if call["is_causal"]:
        steps = torch.arange(tensors[0].shape[-2]).unsqueeze(1)
        allowed = allowed & (batch.positions(keys).unsqueeze(0) <= steps)
    given: Any = allowed
    if mask is not None:
        own = unsqueezed(batch.rows_of(mask), query.rank - mask.rank)
        given = allowed & own if own.dtype is torch.bool else torch.where(allowed, own, float("-inf"))
    values = batch.masked(value, [value.rank - 2], 0)
    keys_ = batch.masked(key, [key.rank - 2], 0)
    result = call.run(query=tensors[0], key=keys_, value=values, attn_mask=given, is_causal=False)
    return call.result(result)
