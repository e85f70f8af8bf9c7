"""Rules of products that sum over a dimension: zeros stand beyond a row's own size on both sides."""

from __future__ import annotations

from typing import Any

import torch

from .sizes import is_ragged
from .value import Batch, Call, NoRule, Results, Value, in_dim, reject_split_blocks, unsqueezed, with_ones, without_ones


def linear(batch: Batch, call: Call) -> Results:
    """Apply a layer to the last dimension. Raises `NoRule`: the layer has weights for each timestep."""
    value, weight, bias = call.value("input"), call.value("weight"), call.get("bias")
    if is_ragged(value.sizes[-1]):
        raise NoRule("a layer with weights for each timestep")
    reject_split_blocks(value, -1)
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
    reject_split_blocks(first, -1)
    return call.result(call.run(input1=batch.every_row(first), input2=batch.every_row(second)))


def matmul(batch: Batch, call: Call) -> Results:
    """Multiply matrices, vectors or batches of matrices."""
    first, second = list(call.values())
    shared = first.shared and second.shared and not is_ragged(first.sizes[-1])
    return call.results(_matmul(batch, first, second, len(call.sizes[0])), shared=shared)


def _matmul(batch: Batch, first: Value, second: Value, rank: int) -> torch.Tensor:
    reject_split_blocks(first, -1)
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


def attention(batch: Batch, call: Call) -> Results:
    """Attend to the row's own keys. Raises `NoRule`: the size of queries is the number of timesteps."""
    query, key, value = (call.value(name) for name in ("query", "key", "value"))
    if is_ragged(query.sizes[-1]):
        raise NoRule("attention over queries whose elements are timesteps")
    reject_split_blocks(query, -1)
    reject_split_blocks(value, -2)
    keys = key.sizes[-2]
    tensors = {"query": batch.every_row(query), "key": batch.every_row(key), "value": batch.every_row(value)}
    mask: Value | None = call.get("attn_mask")
    given: Any = None if mask is None else unsqueezed(batch.rows_of(mask), query.rank - mask.rank)
    if is_ragged(keys):
        tensors["key"] = batch.masked(Value(tensors["key"], key.sizes), [key.rank - 2], 0)
        tensors["value"] = batch.masked(Value(tensors["value"], value.sizes), [value.rank - 2], 0)
        allowed = in_dim(batch.valid(keys), query.rank, query.rank + 1)
        if call["is_causal"]:
            steps = torch.arange(tensors["query"].shape[-2]).unsqueeze(1)
            allowed = allowed & (batch.positions(keys).unsqueeze(0) <= steps)
        if given is not None and given.dtype is not torch.bool:
            given = torch.where(allowed, given, float("-inf"))
        else:
            given = allowed if given is None else allowed & given
    if given is not None:
        tensors["attn_mask"] = given.expand(batch.rows, *batch.padded_sizes(call.sizes[0][:-2]), *given.shape[-2:])
    if query.rank in (3, 4):  # torch has a kernel for four dimensions, which treats NaN otherwise than that for others
        tensors = {name: x.flatten(0, 1) if query.rank == 4 else x.unsqueeze(1) for name, x in tensors.items()}
    result = call.run(**tensors, is_causal=bool(call["is_causal"]) and given is None)
    return call.result(result.reshape(batch.rows, *batch.padded_sizes(call.sizes[0])))
