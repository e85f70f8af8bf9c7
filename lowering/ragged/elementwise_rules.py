"""Rules of operators that keep every element at its position, and of those that create tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import sympy
import torch

from ..exported_graph import aten_names
from .sizes import in_python, is_ragged
from .value import Batch, Call, NoRule, Results, Value, unsqueezed

_KEEPS_ZERO = aten_names("to _to_copy clone contiguous alias detach relu tanh neg dropout")
_EXACT_SCALARS = {"mul", "div", "floor_divide"}
"""Operators that take a scalar beside tensors of half precision in float32."""


def is_ragged_number(argument: object) -> bool:
    """Whether an argument is a number that depends on the request's timesteps."""
    return isinstance(argument, sympy.Expr) and is_ragged(argument)


def pointwise(batch: Batch, call: Call) -> Results:
    """Broadcast from the right; a number that depends on the timesteps becomes one number for each row."""
    rank = len(call.sizes[0])
    numbers = {name: batch.counted(value) for name, value in call.arguments.items() if is_ragged_number(value)}
    shared = call.shared and not numbers
    dtype = _dtype_of_scalars(call, [*numbers.values()])

    def aligned(name: str, argument: Any) -> Any:
        if isinstance(argument, Value):
            if argument.shared:
                return argument.tensor
            is_cast = dtype is not None and argument.rank == 0 and name != "condition"
            return unsqueezed(argument.tensor.to(dtype) if is_cast else argument.tensor, rank - argument.rank)
        if name in numbers:
            return numbers[name].to(dtype or numbers[name].dtype).reshape(-1, *[1] * rank)
        return in_python(argument)

    results = call.run(**{name: aligned(name, argument) for name, argument in call.arguments.items()})
    if len(call.sizes) > 1:
        return tuple(Value(tensor, sizes, shared) for tensor, sizes in zip(results, call.sizes, strict=True))
    keeps_zero = not shared and str(call.target).rsplit(".", 1)[0] in _KEEPS_ZERO and call.value().zero_beyond
    return Value(results, call.sizes[0], shared, keeps_zero)


def _dtype_of_scalars(call: Call, numbers: Sequence[torch.Tensor]) -> torch.dtype | None:
    """Return the dtype to which torch casts numbers, and tensors of no dimensions of one request; None to leave them.

    In a batch they have a dimension of rows, and would change the dtype in which the other tensors are computed.
    """
    scalars, others = set[torch.dtype](), set[torch.dtype]()
    for name, value in call.arguments.items():
        if isinstance(value, Value) and name != "condition":
            (others if value.rank else scalars).add(value.tensor.dtype)
    if not (scalars or (numbers and others)):
        return None
    array = dtype = reduce(torch.promote_types, others or scalars)
    if others and scalars:
        scalar = reduce(torch.promote_types, scalars)
        dtype = torch.result_type(torch.empty(1, dtype=array), torch.empty((), dtype=scalar))
    if numbers:
        number = 1.0 if any(map(torch.is_floating_point, numbers)) else 1
        dtype = torch.result_type(torch.empty((), dtype=dtype), number)
    if dtype in (torch.float16, torch.bfloat16) and str(call.target).split(".")[1] in _EXACT_SCALARS:
        if array is not dtype:
            raise NoRule("integers and a number of half precision")
        return torch.float32
    return None if call.dtypes[0].is_floating_point and not dtype.is_floating_point else dtype


def same(batch: Batch, call: Call) -> Results:
    """Return the argument: what this package makes writes nothing in place, so that nothing need be copied."""
    return call.value()


def clamp(batch: Batch, call: Call) -> Results:
    """Limit elements; limits of which one depends on the timesteps are tensors of each row."""
    if not any(map(is_ragged_number, (call["min"], call["max"]))):
        return pointwise(batch, call)
    value = call.value()
    given = {name: batch.counted(sympy.sympify(call[name])) for name in ("min", "max") if call[name] is not None}
    limits = {name: own.reshape(-1, *[1] * value.rank).to(call.dtypes[0]) for name, own in given.items()}
    return call.result(torch.clamp(batch.rows_of(value), **limits))


def factory(batch: Batch, call: Call) -> Results:
    """Create the same tensor for all rows; a fill that depends on the request differs between rows."""
    (sizes,) = call.sizes
    fill: Any = call.get("fill_value", call.get("s"))
    if fill is None:
        fill = 1 if "ones" in str(call.target) else 0
    if isinstance(fill, Value) or is_ragged_number(fill):
        own = batch.every_row(fill) if isinstance(fill, Value) else batch.counted(fill)
        own = own.to(call.dtypes[0]).reshape(-1, *[1] * len(sizes))
        return call.result(own.expand(batch.rows, *batch.padded_sizes(sizes)))
    return Value(torch.full(batch.padded_sizes(sizes), in_python(fill), dtype=call.dtypes[0]), sizes, shared=True)


def arange(batch: Batch, call: Call) -> Results:
    """Count; from a start that depends on the timesteps, or beyond those before the batch, each row from its own."""
    (sizes,) = call.sizes
    start, step = call.get("start", 0), call.get("step", 1)
    before = batch.before if is_ragged(sizes[0]) else None
    numbers = torch.arange(batch.padded(sizes[0]), dtype=call.dtypes[0])
    if before is not None:
        numbers = numbers + before.unsqueeze(1).to(call.dtypes[0])
    if step not in (None, 1):
        numbers = numbers * in_python(step)
    if is_ragged_number(start):
        return call.result((batch.counted(start).unsqueeze(1) + numbers).to(call.dtypes[0]))
    if start not in (None, 0):
        numbers = numbers + in_python(start)
    return Value(numbers.to(call.dtypes[0]), sizes, shared=before is None)


def fourier(batch: Batch, call: Call) -> Results:
    """Transform dimensions that are not ragged, such as the samples of a frame."""
    value = call.value()
    if any(is_ragged(value.sizes[dim]) for dim in call.dims):
        raise NoRule("a Fourier transform over the timesteps")
    return each_alike(batch, call)


def each_alike(batch: Batch, call: Call) -> Results:
    """Run an operator that treats each row like all others, and keeps first what is within a row's own size."""
    return Value(call.after_rows(), call.sizes[0], call.shared)


def copy(batch: Batch, call: Call) -> Results:
    """Return the source in the sizes of the tensor that it replaces."""
    source = call.value("src")
    tensor = unsqueezed(batch.every_row(source), len(call.sizes[0]) - source.rank)
    return call.result(tensor.expand(batch.rows, *batch.padded_sizes(call.sizes[0])).to(call.dtypes[0]))


def masked_fill(batch: Batch, call: Call) -> Results:
    """Fill with a number, or with one of each request, where the mask is true."""
    fill = call["value"]
    if is_ragged_number(fill) or (isinstance(fill, Value) and not fill.shared):
        arguments = {"condition": call["mask"], "self": fill, "other": call["self"]}
        call = replace(call, target=torch.ops.aten.where.self, arguments=arguments)
    return pointwise(batch, call)
