"""Tensors of no dimensions: beside others they count less for the dtype of a call, also where a batch has one a row."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from torchserve_neuron_lstm.lowering.ragged.elementwise_rules import pointwise
from torchserve_neuron_lstm.lowering.ragged.value import Batch, Call, NoRule, Value

ROWS, TIME = 3, 5
aten = torch.ops.aten
OPERATORS = {
    "add": aten.add.Tensor,
    "mul": aten.mul.Tensor,
    "div": aten.div.Tensor,
    "floor_divide": aten.floor_divide.default,
    "remainder": aten.remainder.Tensor,
    "fmod": aten.fmod.Tensor,
    "maximum": aten.maximum.default,
    "pow": aten.pow.Tensor_Tensor,
    "gt": aten.gt.Tensor,
    "eq": aten.eq.Tensor,
    "logical_and": aten.logical_and.default,
    "bitwise_and": aten.bitwise_and.Tensor,
    "where": aten.where.self,
}
DTYPES = (*(torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64, torch.bool),)


def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
    """Draw values of very different scales, of which narrower integers hold a part only."""
    scale = 10.0 ** torch.randint(-1, 12 if dtype.itemsize > 2 else 3, ())
    values = torch.randn(shape) * scale
    return values.to(dtype) if dtype.is_floating_point else values.clamp(-(2**40), 2**40).long().to(dtype)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_scalar_of_each_request_is_cast_as_in_eager_mode(name: str) -> None:
    operator = OPERATORS[name]
    torch.manual_seed(0)
    compared = 0
    for own, other, _ in itertools.product(DTYPES, DTYPES, range(4)):
        tensors = [drawn(own, ROWS, TIME), drawn(other, ROWS)]
        values = [Value(tensors[0], (TIME,)), Value(tensors[1], ())]
        if name == "where":
            tensors.insert(0, torch.rand(ROWS, TIME) < 0.5)
            values.insert(0, Value(tensors[0], (TIME,)))
        try:
            alone = [operator(*(tensor[row] for tensor in tensors)) for row in range(ROWS)]
        except RuntimeError:  # the operator does not take these dtypes, or divides by 0
            continue
        schema = operator._schema.arguments
        arguments = {a.name: v for a, v in itertools.zip_longest(schema, values)}
        arguments = {a.name: a.default_value if arguments[a.name] is None else arguments[a.name] for a in schema}
        try:
            made = pointwise(
                Batch(ROWS, TIME, torch.full((ROWS,), TIME)), Call(operator, arguments, ((TIME,),), (alone[0].dtype,))
            )
        except NoRule:
            continue
        compared += 1
        assert isinstance(made, Value)
        assert torch.equal(made.tensor.to(alone[0].dtype).nan_to_num(1.5), torch.stack(alone).nan_to_num(1.5)), (
            own,
            other,
        )

    assert compared > 30
