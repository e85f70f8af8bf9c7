"""Rules of reductions and normalisations: padding is replaced by a value that changes no result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from .sizes import SizeExpr, is_ragged
from .value import Batch, Call, NoRule, Results, Rule, Value, normalized, normalized_dims, shifted


def reduction(neutral: float) -> Rule:
    """Create the rule of a reduction, with the value that changes no result."""

    def rule(batch: Batch, call: Call) -> Results:
        value = call.value()
        dims = _reduced(call, value)
        tensor = batch.masked(value, dims, _limited(neutral, value.tensor.dtype))
        if "dim" not in call.arguments and "dims" not in call.arguments:
            tensor = tensor.flatten(1) if value.rank else tensor.unsqueeze(1)
            return _results(call, value, dims, _over_all(call, tensor))
        name = "dim" if "dim" in call.arguments else "dims"
        many = not isinstance(call[name], int)
        if not many and call[name] is not None:
            return _results(call, value, dims, call.run(self=tensor, **{name: dims[0] + 1}))
        return _results(call, value, dims, call.run(self=tensor, **{name: shifted(dims)}))

    return rule


def _over_all(call: Call, tensor: torch.Tensor) -> torch.Tensor:
    """Reduce [B, N] to [B] by an operator that has no dimensions among its arguments."""
    operator = call.target.overloadpacket
    name = str(call.target).split(".")[1]
    if name in ("max", "min"):
        result: torch.Tensor = getattr(torch, f"a{name}")(tensor, 1)
        return result
    options = {key: call[key] for key in ("dtype",) if call.get(key) is not None}
    reduced: torch.Tensor = operator(tensor, 1, **options)
    return reduced


def _reduced(call: Call, value: Value) -> tuple[int, ...]:
    return normalized_dims(call.get("dim", call.get("dims")), value.rank)


def _limited(fill: float, dtype: torch.dtype) -> Any:
    """Return a fill that the dtype can hold."""
    if dtype.is_floating_point or not math.isinf(fill):
        return bool(fill) if dtype is torch.bool and not math.isinf(fill) else fill
    if dtype is torch.bool:
        return fill > 0
    limits = torch.iinfo(dtype)
    return limits.max if fill > 0 else limits.min


def _results(call: Call, value: Value, dims: Sequence[int], results: Any) -> Results:
    """Wrap the results; without ragged dimensions a shared tensor stays shared."""
    return call.results(results, shared=value.shared and not any(is_ragged(value.sizes[dim]) for dim in dims))


def count(batch: Batch, value: Value, dims: Sequence[int]) -> Any:
    """Return the number of elements in these dimensions: a number, or one for each row."""
    total: SizeExpr = sympy.prod([value.sizes[dim] for dim in dims])
    return batch.own(total) if is_ragged(total) else int(total)


def mean(batch: Batch, call: Call) -> Results:
    """Divide the sum by each row's own number of elements."""
    value = call.value()
    dims = _reduced(call, value)
    keep = bool(call.get("keepdim"))
    tensor = _mean(batch, value, batch.rows_of(value), dims, keep).to(call.dtypes[0])
    return _results(call, value, dims, tensor)


def _mean(batch: Batch, value: Value, tensor: torch.Tensor, dims: Sequence[int], keep: bool) -> torch.Tensor:
    tensor = batch.masked(Value(tensor, value.sizes), dims, 0)
    total = tensor.sum(shifted(dims), keepdim=keep) if dims else tensor
    number = count(batch, value, dims)
    return total / (number.reshape(-1, *[1] * (total.dim() - 1)) if isinstance(number, torch.Tensor) else number)


def variance(root: bool, with_mean: bool = False) -> Rule:
    """Create the rule of var, std and var_mean, over each row's own elements."""

    def rule(batch: Batch, call: Call) -> Results:
        value = call.value()
        dims, keep = _reduced(call, value), bool(call.get("keepdim"))
        correction = call.get("correction")
        if "unbiased" in call.arguments:
            correction = int(call["unbiased"])
        correction = 1 if correction is None else float(correction)
        tensor = batch.rows_of(value)
        center = _mean(batch, value, tensor, dims, keep=True)
        squares = _mean(batch, value, (tensor - center) ** 2, dims, keep)
        number = count(batch, value, dims)
        if isinstance(number, torch.Tensor):
            number = number.reshape(-1, *[1] * (squares.dim() - 1))
        result = squares * (number / (number - correction)) if correction else squares
        result = result.sqrt() if root else result
        if not with_mean:
            return _results(call, value, dims, result)
        own = center if keep else center.reshape(result.shape)
        return _results(call, value, dims, (result, own))

    return rule


def softmax(batch: Batch, call: Call) -> Results:
    """Normalise over the row's own positions."""
    value = call.value()
    dim = normalized(call["dim"], value.rank)
    tensor = batch.masked(value, [dim], float("-inf"))
    # A column of padding holds minus infinity only if the row is a dummy, which has at least one position.
    shared = value.shared and not is_ragged(value.sizes[dim])
    result = call.run(self=tensor, dim=dim + 1)
    return Value(result.squeeze(0) if shared else result, value.sizes, shared)


def glu(batch: Batch, call: Call) -> Results:
    """Gate the first half of a dimension by the second one."""
    value = call.value()
    dim = normalized(call["dim"], value.rank)
    if is_ragged(value.sizes[dim]):
        raise NoRule("a gate over halves of the timesteps")
    return Value(call.run(self=value.tensor, dim=dim if value.shared else dim + 1), call.sizes[0], value.shared)


def scan(batch: Batch, call: Call) -> Results:
    """Accumulate along a dimension: earlier positions only are read.

    A chunk of time carries the result of each row, also where all rows share it.
    """
    value = call.value()
    dim = normalized(call["dim"], value.rank)
    shared = value.shared and not is_ragged(value.sizes[dim])
    results = call.run(self=value.tensor if shared else batch.every_row(value), dim=dim if shared else dim + 1)
    tensors = [results] if isinstance(results, torch.Tensor) else list(results)
    values = tuple(Value(t, sizes, shared) for t, sizes in zip(tensors, call.sizes, strict=True))
    return values if len(values) > 1 else values[0]


def layer_norm(batch: Batch, call: Call) -> Results:
    """Normalise the last dimensions, which are not ragged.

    Raises:
        NoRule: the number of weights is that of the timesteps.
    """
    first = next(iter(call.arguments))
    value = call.value(first)
    if any(is_ragged(size) for size in value.sizes[value.rank - len(call["normalized_shape"]) :]):
        raise NoRule("a normalisation whose number of weights is that of the timesteps")
    return Value(call.run(**{first: value.tensor}), value.sizes, value.shared)


def batch_norm(batch: Batch, call: Call) -> Results:
    """Apply the fixed statistics to each channel; in training the request's own are used."""
    value = call.value("input")
    if call.get("training") or call["running_mean"] is None:
        dims = [dim for dim in range(value.rank) if dim != 1]
        return _normalized_channels(batch, call, value, dims)
    tensor = batch.rows_of(value)
    weight, bias = (None if call[name] is None else call.value(name).tensor for name in ("weight", "bias"))
    center, spread = call.value("running_mean").tensor, call.value("running_var").tensor
    flat = torch.nn.functional.batch_norm(tensor.flatten(0, 1), center, spread, weight, bias, eps=float(call["eps"]))
    result = flat.reshape(tensor.shape)
    return Value(result.squeeze(0) if value.shared else result, value.sizes, value.shared)


def instance_norm(batch: Batch, call: Call) -> Results:
    """Normalise each channel by the statistics of the row's own positions."""
    value = call.value("input")
    if not call["use_input_stats"]:
        tensor = batch.rows_of(value)
        result = call.run(input=tensor.flatten(0, 1)).reshape(tensor.shape)
        return Value(result.squeeze(0) if value.shared else result, value.sizes, value.shared)
    return _normalized_channels(batch, call, value, list(range(2, value.rank)))


def _normalized_channels(batch: Batch, call: Call, value: Value, dims: Sequence[int]) -> Results:
    tensor = batch.rows_of(value)
    result = _standardized(batch, value, tensor, dims, call["eps"])
    shape = [1, 1, -1, *[1] * (value.rank - 2)]
    return _results(call, value, dims, _scaled(call, result, shape))


def _standardized(
    batch: Batch, value: Value, tensor: torch.Tensor, dims: Sequence[int], epsilon: float
) -> torch.Tensor:
    center = _mean(batch, value, tensor, dims, keep=True)
    spread = _mean(batch, value, (tensor - center) ** 2, dims, keep=True)
    return (tensor - center) * torch.rsqrt(spread + float(epsilon))


def _scaled(call: Call, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    if call.get("weight") is not None:
        tensor = tensor * call.value("weight").tensor.reshape(shape)
    return tensor + call.value("bias").tensor.reshape(shape) if call.get("bias") is not None else tensor


def group_norm(batch: Batch, call: Call) -> Results:
    """Normalise groups of channels by the statistics of the row's own positions."""
    value = call.value("input")
    groups = int(call["num_groups"])
    tensor = batch.rows_of(value)
    own, channels, *rest = value.sizes
    grouped = tensor.reshape(*tensor.shape[:2], groups, int(channels) // groups, *tensor.shape[3:])
    sizes = (own, sympy.Integer(groups), channels / groups, *rest)
    dims = list(range(2, len(sizes)))
    result = _standardized(batch, Value(grouped, sizes), grouped, dims, call["eps"]).reshape(tensor.shape)
    return _results(call, value, list(range(1, value.rank)), _scaled(call, result, [1, 1, -1, *[1] * len(rest)]))


def vector_norm(batch: Batch, call: Call) -> Results:
    """Reduce by a norm: zeros change none of positive order.

    Raises:
        NoRule: the order is not positive, and zeros would change the norm.
    """
    order = call.get("ord", call.get("p", 2))
    if order is not None and not float(order) > 0:
        raise NoRule(f"a norm of order {order}")
    return reduction(0)(batch, call)
