"""Rules of operators that keep every element at its position, and of those that create tensors."""

from __future__ import annotations

from functools import reduce
from typing import Any

import sympy
import torch

from .sizes import in_python, is_ragged
from .value import Batch, Call, NoRule, Results, Value, normalized_dims, unsqueezed

_KEEPS_ZERO = {
    f"aten.{name}"
    for name in ("to", "_to_copy", "clone", "contiguous", "alias", "detach", "relu", "tanh", "neg", "dropout")
}


def is_ragged_number(argument: object) -> bool:
    """Whether an argument is a number that depends on the request's timesteps."""
    return isinstance(argument, sympy.Expr) and is_ragged(argument)


def pointwise(batch: Batch, call: Call) -> Results:
    """Broadcast from the right; a number that depends on the timesteps becomes one number for each row."""
    rank = len(call.sizes[0])
    shared = call.shared and not any(map(is_ragged_number, call.arguments.values()))

    def aligned(argument: Any) -> Any:
        if isinstance(argument, Value):
            return argument.tensor if argument.shared else unsqueezed(argument.tensor, rank - argument.rank)
        if is_ragged_number(argument):
            return _as_scalar(batch.number(argument), call).reshape(-1, *[1] * rank)
        return in_python(argument)

    results = call.run(**{name: aligned(argument) for name, argument in call.arguments.items()})
    if len(call.sizes) > 1:
        return tuple(Value(tensor, sizes, shared) for tensor, sizes in zip(results, call.sizes, strict=True))
    keeps_zero = not shared and str(call.target).rsplit(".", 1)[0] in _KEEPS_ZERO and call.value().zero_beyond
    return Value(results, call.sizes[0], shared, keeps_zero)


def _as_scalar(number: torch.Tensor, call: Call) -> torch.Tensor:
    """Return a number of each row in the type to which torch casts a Python float beside the tensors of the call."""
    dtypes = [value.tensor.dtype for value in call.values()]
    if not number.is_floating_point() or not dtypes:
        return number
    dtype = reduce(torch.promote_types, dtypes)
    return number.to(dtype if dtype.is_floating_point else torch.get_default_dtype())


def same(batch: Batch, call: Call) -> Results:
    """Return the argument: what this package makes writes nothing in place, so that nothing need be copied."""
    return call.value()


def clamp(batch: Batch, call: Call) -> Results:
    """Limit elements; limits of which one depends on the timesteps are tensors of each row."""
    if not any(map(is_ragged_number, (call["min"], call["max"]))):
        return pointwise(batch, call)
    value = call.value()

    def limit(name: str) -> torch.Tensor | None:
        number = call[name]
        own = None if number is None else batch.number(sympy.sympify(number))
        return None if own is None else own.reshape(-1, *[1] * value.rank).to(call.dtypes[0])

    return call.result(torch.clamp(batch.rows_of(value), limit("min"), limit("max")))


def factory(batch: Batch, call: Call) -> Results:
    """Create the same tensor for all rows; a fill that depends on the timesteps differs between rows."""
    (sizes,) = call.sizes
    fill: Any = call.get("fill_value")
    name = str(call.target).split(".")[1]
    if fill is None:
        fill = 1 if "ones" in name else 0
    if is_ragged_number(fill):
        column = batch.number(fill).to(call.dtypes[0]).reshape(-1, *[1] * len(sizes))
        return call.result(column.expand(batch.rows, *batch.padded_sizes(sizes)))
    if isinstance(fill, Value):
        return pointwise_fill(batch, call, fill)
    number = in_python(fill)
    return Value(torch.full(batch.padded_sizes(sizes), number, dtype=call.dtypes[0]), sizes, shared=True)


def pointwise_fill(batch: Batch, call: Call, fill: Value) -> Results:
    """Create a tensor filled with a tensor of one element."""
    (sizes,) = call.sizes
    tensor = unsqueezed(batch.every_row(fill), len(sizes) - fill.rank).to(call.dtypes[0])
    return call.result(tensor.expand(batch.rows, *batch.padded_sizes(sizes)))


def scalar(batch: Batch, call: Call) -> Results:
    """Create a tensor of no dimensions from a number."""
    number = call.get("s")
    if is_ragged_number(number):
        return call.result(batch.number(number).to(call.dtypes[0]))
    return Value(torch.full((), in_python(number), dtype=call.dtypes[0]), (), shared=True)


def arange(batch: Batch, call: Call) -> Results:
    """Count; from a start that depends on the timesteps, each row from its own."""
    (sizes,) = call.sizes
    start, step = call.get("start", 0), call.get("step", 1)
    numbers = torch.arange(batch.padded(sizes[0]), dtype=call.dtypes[0])
    if step not in (None, 1):
        numbers = numbers * in_python(step)
    if is_ragged_number(start):
        return call.result((batch.number(start).unsqueeze(1) + numbers).to(call.dtypes[0]))
    if start not in (None, 0):
        numbers = numbers + in_python(start)
    return Value(numbers.to(call.dtypes[0]), sizes, shared=True)


def fourier(batch: Batch, call: Call) -> Results:
    """Transform dimensions that are not ragged, such as the samples of a frame."""
    value = call.value()
    dims = normalized_dims(call["dim"], value.rank)
    if any(is_ragged(value.sizes[dim]) for dim in dims):
        raise NoRule("a Fourier transform over the timesteps")
    rows = 0 if value.shared else 1
    return Value(call.run(self=value.tensor, dim=[dim + rows for dim in dims]), call.sizes[0], value.shared)


def parts(batch: Batch, call: Call) -> Results:
    """Read complex numbers as pairs of real ones, or make them of such pairs: in the last dimension."""
    value = call.value()
    return Value(call.run(self=value.tensor), call.sizes[0], value.shared)


def copy(batch: Batch, call: Call) -> Results:
    """Return the source in the sizes of the tensor that it replaces."""
    source = call.value("src")
    tensor = unsqueezed(batch.every_row(source), len(call.sizes[0]) - source.rank)
    return call.result(tensor.expand(batch.rows, *batch.padded_sizes(call.sizes[0])).to(call.dtypes[0]))


def masked_fill(batch: Batch, call: Call) -> Results:
    """Fill with a number, or with one of each request, where the mask is true."""
    fill, rank = call["value"], len(call.sizes[0])
    if is_ragged_number(fill):
        own = batch.number(fill)
    elif isinstance(fill, Value) and not fill.shared:
        own = fill.tensor
    else:
        return pointwise(batch, call)
    mask, value = (unsqueezed(batch.rows_of(v), rank - v.rank) for v in (call.value("mask"), call.value()))
    return call.result(torch.where(mask, unsqueezed(own, rank).to(value.dtype), value))
