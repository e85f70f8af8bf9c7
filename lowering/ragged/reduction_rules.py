"""Rules of reductions and normalisations: padding is replaced by a value that changes no result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from .shape_rules import unraveled
from .sizes import in_python, is_ragged, product
from .value import Batch, Call, NoRule, Results, Value, shifted, unsqueezed


def reduction(neutral: float, batch: Batch, call: Call) -> Results:
    """Reduce; the value that stands for padding changes no result."""
    value = call.value()
    if call.dtypes[0].is_floating_point:  # integers and conditions have no infinity
        value = replace(value, tensor=value.tensor.to(call.dtypes[0]))
    dims = call.dims
    tensor = batch.masked(value, dims, neutral)
    if "dim" not in call.arguments and "dims" not in call.arguments:
        tensor = tensor.flatten(1) if value.rank else tensor.unsqueeze(1)
        return _results(call, value, dims, _over_all(call, tensor))
    name = "dim" if "dim" in call.arguments else "dims"
    place = dims[0] + 1 if isinstance(call[name], int) else shifted(dims)
    return _results(call, value, dims, call.run(self=tensor, **{name: place}))


def extreme_position(neutral: float, batch: Batch, call: Call) -> Results:
    """Return the place of the first of equal extremes, of a dimension or of all."""
    value = call.value()
    if call["dim"] is not None:
        return reduction(neutral, batch, call)
    dims = range(value.rank)
    place = call.target.overloadpacket(batch.masked(value, dims, neutral).flatten(1), 1, True)
    own = unraveled(batch, value.sizes, place)
    return call.result(own.reshape(-1, *[1] * len(call.sizes[0])))


def _over_all(call: Call, tensor: torch.Tensor) -> torch.Tensor:
    """Reduce [B, N] to [B] by an operator that has no dimensions among its arguments."""
    name = str(call.target).split(".")[1]
    operator: Any = getattr(torch, f"a{name}") if name in ("max", "min") else call.target.overloadpacket
    reduced: torch.Tensor = operator(tensor, 1, **({"dtype": call["dtype"]} if call.get("dtype") is not None else {}))
    return reduced


def _results(call: Call, value: Value, dims: Sequence[int], results: Any) -> Results:
    """Wrap the results; without ragged dimensions a shared tensor stays shared."""
    return call.results(results, shared=value.shared and not any(is_ragged(value.sizes[dim]) for dim in dims))


def _count(batch: Batch, value: Value, dims: Sequence[int], rank: int) -> torch.Tensor | int:
    """Return the number of elements in these dimensions: a number, or one for each row in a tensor of this rank."""
    total = product([value.sizes[dim] for dim in dims])
    return batch.own(total).reshape(-1, *[1] * (rank - 1)) if is_ragged(total) else int(total)


def mean(batch: Batch, call: Call) -> Results:
    """Divide the sum by each row's own number of elements."""
    value, dims, keep = call.value(), call.dims, bool(call.get("keepdim"))
    tensor = mean_of_rows(batch, value, batch.rows_of(value), dims, keep).to(call.dtypes[0])
    return _results(call, value, dims, tensor)


def mean_of_rows(batch: Batch, value: Value, tensor: torch.Tensor, dims: Sequence[int], keep: bool) -> torch.Tensor:
    """Return the mean over each row's own elements of a tensor with the sizes of a value."""
    tensor = batch.masked(Value(tensor, value.sizes), dims, 0)
    total = tensor.sum(shifted(dims), keepdim=keep) if dims else tensor
    return total / _count(batch, value, dims, total.dim())


def variance(batch: Batch, call: Call, *, root: bool, with_mean: bool = False) -> Results:
    """Compute var, std and var_mean over each row's own elements."""
    value, dims, keep = call.value(), call.dims, bool(call.get("keepdim"))
    correction = call.get("correction")
    if "unbiased" in call.arguments:
        correction = int(call["unbiased"])
    correction = 1 if correction is None else float(correction)
    left, center = _centered(batch, value, dims)
    # Torch squares in double precision. Relative to the largest one, no square overflows or vanishes.
    peak = batch.masked(Value(left.abs(), value.sizes), dims, 0).amax(shifted(dims), keepdim=True)
    squares = mean_of_rows(batch, value, (left / peak.masked_fill(peak == 0, 1)) ** 2, dims, keep)
    peak = peak.reshape(squares.shape)
    number = _count(batch, value, dims, squares.dim())
    left_over = number - correction
    left_over = left_over.clamp(min=0) if isinstance(left_over, torch.Tensor) else max(left_over, 0)
    result = squares * number / left_over if correction else squares
    result = result.sqrt() * peak if root else result * peak * peak
    if not with_mean:
        return _results(call, value, dims, result)
    own = center if keep else center.reshape(result.shape)
    return _results(call, value, dims, (result, own))


def softmax(batch: Batch, call: Call) -> Results:
    """Normalise over the row's own positions."""
    value, dim = call.value(), call.dim
    value = replace(value, tensor=value.tensor.to(call.dtypes[0]))  # integers have no infinity
    tensor = batch.masked(value, [dim], float("-inf"))
    # A column of padding holds minus infinity only if the row is a dummy, which has at least one position.
    return _results(call, value, [dim], call.run(self=tensor, dim=dim + 1))


def scan(batch: Batch, call: Call) -> Results:
    """Accumulate along a dimension: earlier positions only are read. Each row has its own result, for chunks."""
    value, dim = call.value(), call.dim
    shared = value.shared and not is_ragged(value.sizes[dim])
    tensor = batch.rows_of(value) if shared else batch.every_row(value)
    return call.results(call.run(self=tensor, dim=dim + 1), shared=shared)


def layer_norm(batch: Batch, call: Call) -> Results:
    """Normalise the last dimensions. Raises `NoRule`: the statistics are results too, and those of timesteps."""
    first = next(iter(call.arguments))
    value = call.value(first)
    dims = list(range(value.rank - len(call["normalized_shape"]), value.rank))
    name = str(call.target)
    own = [v for n in ("weight", "bias") if (v := call.get(n)) is not None and not v.shared]
    if not own and not any(is_ragged(value.sizes[dim]) for dim in dims):
        return call.results(call.run(**{first: batch.rows_of(value)}), shared=value.shared)
    if "native" in name:
        raise NoRule("the statistics of a normalisation over the timesteps")
    tensor = batch.rows_of(value)
    if "rms" in name:
        eps = torch.finfo(tensor.dtype).eps if call["eps"] is None else float(call["eps"])
        tensor = tensor * torch.rsqrt(mean_of_rows(batch, value, tensor**2, dims, keep=True) + eps)
    else:
        tensor = _standardized(batch, value, dims, call["eps"])
    for key, function in (("weight", torch.mul), ("bias", torch.add)):
        if call.get(key) is not None:
            factor = batch.rows_of(call.value(key))
            tensor = function(tensor, unsqueezed(factor, tensor.dim() - factor.dim()))
    return call.result(tensor.expand(batch.rows, *tensor.shape[1:]))


def batch_norm(batch: Batch, call: Call) -> Results:
    """Apply the fixed statistics to each channel; in training the request's own are used."""
    value = call.value("input")
    if call.get("training") or call["running_mean"] is None:
        dims = [dim for dim in range(value.rank) if dim != 1]
        formats = (torch.contiguous_format, torch.channels_last)[: 2 if value.rank == 4 else 1]
        if any(call.traced.is_contiguous(memory_format=form) for form in formats):
            return _normalized_channels(batch, call, value, dims)
        # Torch squares in double precision: where it squares contiguous elements, those beyond 1e19 overflow.
        value = replace(value, tensor=value.tensor.double())
        return _normalized_channels(batch, call, value, dims)
    return _by_statistics(batch, call, value)


def _by_statistics(batch: Batch, call: Call, value: Value) -> Results:
    """Normalise by statistics that are arguments."""
    names = ("running_mean", "running_var", "weight", "bias")
    given = {name: call.value(name) for name in names if call[name] is not None}
    tensor = batch.rows_of(value)
    if all(v.shared for v in given.values()):
        tensors: dict[str, Any] = {name: v.tensor for name, v in given.items()}
        flat = torch.nn.functional.batch_norm(tensor.flatten(0, 1), **tensors, eps=float(call["eps"]))
        return call.results([flat.reshape(tensor.shape), *_empty(call)], shared=value.shared)
    shape = [1, 1, -1, *[1] * (value.rank - 2)]
    mean, spread = (batch.rows_of(given[name]) for name in names[:2])
    mean, spread = (x.reshape(x.shape[0], *shape[1:]) for x in (mean, spread))
    scaled = _scaled(batch, call, (tensor - mean) * torch.rsqrt(spread + float(call["eps"])))
    return call.results([scaled.expand(batch.rows, *scaled.shape[1:]), *_empty(call)], shared=False)


def _empty(call: Call) -> list[torch.Tensor]:
    """Return the further results of a batch normalisation in eval mode, which nothing reads."""
    return [torch.zeros(1, *(0 for _ in sizes)) for sizes in call.sizes[1:]]


def instance_norm(batch: Batch, call: Call) -> Results:
    """Normalise each channel by the statistics of the row's own positions."""
    value = call.value("input")
    if not call["use_input_stats"]:
        return _by_statistics(batch, call, value)
    return _normalized_channels(batch, call, value, list(range(2, value.rank)))


def _normalized_channels(batch: Batch, call: Call, value: Value, dims: Sequence[int]) -> Results:
    return _results(call, value, dims, _scaled(batch, call, _standardized(batch, value, dims, call["eps"])))


def _standardized(batch: Batch, value: Value, dims: Sequence[int], epsilon: float) -> torch.Tensor:
    left = _centered(batch, value, dims)[0]
    spread = mean_of_rows(batch, value, left**2, dims, keep=True)
    return left * torch.rsqrt(spread + float(epsilon))


def _centered(batch: Batch, value: Value, dims: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensor without its mean, and the mean."""
    tensor = batch.rows_of(value)
    center = mean_of_rows(batch, value, tensor, dims, keep=True)
    left = tensor - center
    # the mean is rounded: what is left of it would count where all elements are far from zero
    rest = mean_of_rows(batch, value, left, dims, keep=True)
    return left - rest, center


def _scaled(batch: Batch, call: Call, tensor: torch.Tensor) -> torch.Tensor:
    """Multiply channels by weights and add the bias, which are shared or those of each request."""
    shape = (-1, *[1] * (tensor.dim() - 3))
    weight, bias = (None if call.get(name) is None else batch.rows_of(call.value(name)) for name in ("weight", "bias"))
    if weight is not None:
        tensor = tensor * weight.reshape(weight.shape[0], 1, *shape)
    return tensor if bias is None else tensor + bias.reshape(bias.shape[0], 1, *shape)


def group_norm(batch: Batch, call: Call) -> Results:
    """Normalise groups of channels by the statistics of the row's own positions."""
    value = call.value("input")
    groups = int(call["num_groups"])
    tensor = batch.rows_of(value)
    own, channels, *rest = value.sizes
    if is_ragged(channels):
        raise NoRule("groups of timesteps")
    grouped = tensor.reshape(*tensor.shape[:2], groups, int(channels) // groups, *tensor.shape[3:])
    sizes = (own, sympy.Integer(groups), channels / groups, *rest)
    dims = list(range(2, len(sizes)))
    result = _standardized(batch, Value(grouped, sizes), dims, call["eps"]).reshape(tensor.shape)
    return _results(call, value, list(range(1, value.rank)), _scaled(batch, call, result))


def vector_norm(batch: Batch, call: Call) -> Results:
    """Reduce by a norm: zeros change none of positive order, infinity none of negative order."""
    order = in_python(call["ord"])
    made = reduction(float("inf") if order < 0 else 0, batch, call)
    value, dims, keep = call.value(), call.dims, bool(call["keepdim"])
    single = batch.masked(value, dims, 0).abs().sum(shifted(dims), keepdim=keep)
    number = _count(batch, value, dims, single.dim())
    if order == 0 or not isinstance(number, torch.Tensor):
        return made
    # Torch takes no power of a single element, which could overflow.
    assert isinstance(made, Value)
    return call.result(torch.where(number == 1, single.to(call.dtypes[0]), made.tensor))
