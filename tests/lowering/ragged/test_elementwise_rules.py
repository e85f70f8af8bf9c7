"""Operators of each element: activation functions, tensors of no dimensions, half precision and extreme scales."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from computed import Computed
from input_configs import one_input
from ragged import lower_exact
from torch import Tensor, nn
from torch.nn import functional

from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.ragged.elementwise_rules import pointwise
from torchserve_neuron_lstm.lowering.ragged.value import Batch, Call, NoRule, Value

ACTIVATIONS = (
    *(nn.CELU(0.5), nn.ELU(0.5), nn.GELU(), nn.GELU(approximate="tanh"), nn.GLU(1), nn.Hardshrink()),
    *(nn.Hardsigmoid(), nn.Hardswish(), nn.Hardtanh(-2.0, 0.5), nn.LeakyReLU(0.3), nn.LogSigmoid()),
    *(nn.LogSoftmax(-1), nn.Mish(), nn.PReLU(), nn.ReLU6(), nn.RReLU(), nn.SELU(), nn.SiLU()),
    *(nn.Softplus(0.5, 2.0), nn.Softshrink(), nn.Softsign(), nn.Tanhshrink(), nn.Threshold(0.1, 20.0)),
)


class EachOfThem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.activations = nn.ModuleList(ACTIVATIONS)

    def forward(self, x: Tensor) -> Any:
        # a mean over time cannot be proved for a padded batch, so that one request is traced alone
        x = self.gru(x)[0] * x.mean(1, keepdim=True).sum(-1, keepdim=True)
        return torch.cat([f(x.mT).mT if isinstance(f, nn.GLU) else f(x) for f in self.activations], -1)


@pytest.mark.ci
def test_every_activation_function_is_served() -> None:
    lower_exact(EachOfThem().eval(), one_input("[batch, time, 3]"), [[9, 4, 1]])


INFINITE = float("inf")


class Projected(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, 8).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x.bfloat16())
        return y.float()


@pytest.mark.few(1)
@pytest.mark.parametrize("features", [6, 32, 64])
def test_an_infinity_of_one_request_reaches_no_other(features: int) -> None:
    config = one_input(f"[batch, time, {features}]", length="[7]", batch="[4]")
    program = lower(Projected(features), config).exported.module()
    x = torch.randn(4, 7, features)
    x[2] = INFINITE

    (y,) = program(x, torch.full((4,), 7))

    assert y[[0, 1, 3]].isfinite().all()


@pytest.mark.few(1)
@pytest.mark.parametrize("features", [5, 34, 100])
def test_a_product_whose_rows_are_read_together_is_refused(features: int) -> None:
    config = one_input(f"[batch, time, {features}]", length="[7]", batch="[4]")

    with pytest.raises(
        LoweringError, match=r"half precision, of which .*test_elementwise_rules.py:\d+: y: Tensor = self.layer"
    ):
        lower(Projected(features), config)


CONFIG = one_input("[batch, time, 4]", length="[8]", batch="[4]")
LENGTHS = (8, 1, 2, 5)
SCALES = (1e-25, 1.0, 1e5, 1e19, 1e25)
STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "deviation": lambda x: x.std(1),
    "deviation of features": lambda x: x.std(2, correction=0)[:, -1],
    "variance": lambda x: x.var((1, 2)),
    "norm": lambda x: x.norm(dim=1),
    "norm of a high order": lambda x: x.norm(p=8, dim=1),
    "cosine": lambda x: functional.cosine_similarity(x, x.flip(2), dim=1),
}


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:(std|var).*degrees of freedom")
@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_is_that_of_eager_mode_at_every_scale(name: str) -> None:
    model = Computed(STATISTICS[name])
    program = lower(model, CONFIG).exported.module()
    generator = torch.Generator().manual_seed(0)

    for scale in SCALES:
        x = torch.randn(4, 8, 4, generator=generator) * scale
        padded = torch.stack([row.clone() for row in x])
        for row, length in enumerate(LENGTHS):
            padded[row, length:] = 1e3
        (answers,) = program(padded, torch.tensor(LENGTHS))
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(
                answers[row], model(x[row : row + 1, :length])[0], rtol=1e-5, atol=0, equal_nan=True
            )


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
