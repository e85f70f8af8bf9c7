import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torchserve_neuron_lstm.lowering.one_request import known_numbers
from torchserve_neuron_lstm.lowering.one_request.known_numbers import compared, indicator, known_values
from torchserve_neuron_lstm.lowering.one_request.quotients import NoQuotient
from torchserve_neuron_lstm.lowering.one_request.single_mode import SingleRequestMode


def lengths_of(*numbers: int) -> Tensor:
    return known_numbers.with_known_values(torch.tensor(numbers), list(numbers))


UNKNOWN: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "wraps": (9, lambda n: n.int() * 2**30),
    "rounds": (9, lambda n: n.float() * (2**24 + 1)),
    "rounds a product": (9, lambda n: (n.float() / 41 * 41).long()),
    "rounds a sum": (9, lambda n: (n.float() / 7 + n.float() / 7).long()),
    "a comparison": (2, lambda n: n / 3 > 2),
    "no quotient": (2, lambda n: n * 0.1),
    "a quotient below zero": (2, lambda n: ((n - 5) / 2).long()),
}


@pytest.mark.parametrize(("number", "function"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_number_that_is_not_certain_is_not_known(number: int, function: Callable[[Tensor], Tensor]) -> None:
    with SingleRequestMode():
        assert known_values(function(lengths_of(number))) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda n: torch.div(n, 2, rounding_mode="floor"),
        lambda n: torch.ceil(n / 4).long(),
        lambda n: ((n * 0.25 + 1.5) - 1).int(),
        lambda n: n.sub_(2).mul_(3),
        lambda n: 10 - (n // 2),
        lambda n: (n.float() / 3).floor().to(torch.int64) >> 1,
        lambda n: torch.stack([n, n])[1],
        lambda n: n.unsqueeze(1),
        lambda n: n.unsqueeze(0).squeeze(1),
        lambda n: n.unsqueeze(-1).unsqueeze(0).squeeze((0, 2)),
        lambda n: n.squeeze(dim=0),
        lambda n: n[None, :, None].squeeze([0, 2]),
        lambda n: n[None].squeeze(),
        lambda n: (n.double() * 1.0).int(),
        lambda n: torch.where(n % 2 == 0, n // 2, n // 2 + 1),
        lambda n: (n // 2 + (n % 3 != 1).long()).clamp(min=2, max=4),
        lambda n: torch.minimum(n // 2 + (n & 1) + torch.fmod(n, 4), torch.tensor(5)),
        lambda n: copy.deepcopy(n).sub_(2) + n,
        lambda n: n.view(-1, 1, 1) + 1,
        lambda n: n.to(torch.uint8).all(),
        lambda n: n.true_divide(2).trunc().type_as(torch.ones(1, dtype=torch.int64)),
    ],
)
def test_numbers_are_those_of_the_tensor(function: Callable[[Tensor], Tensor]) -> None:
    for number in range(1, 12):
        with SingleRequestMode():
            result = function(lengths_of(number))
            known = known_values(result)

        assert known is not None
        assert known.tolist() == result.tolist() == function(torch.tensor([number])).tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda mask: None,
        lambda mask: mask.logical_not_(),
        lambda mask: mask.unsqueeze(1).fill_(False),
        lambda mask: mask.__setitem__(0, False),
        lambda mask: mask.__setitem__(mask.clone(), torch.tensor([False])),
    ],
    ids=["none", "logical_not_", "a view", "setitem", "setitem by a mask"],
)
def test_rows_with_timesteps_are_selected_and_written_until_their_mask_changes(change: Callable[[Tensor], Any]) -> None:
    def rows(lengths: Tensor) -> list[Tensor]:
        x, pooled, counts = torch.arange(6.0).view(1, 3, 2), torch.zeros(1, 2), lengths.clone()
        mask = lengths > 0
        change(mask)
        if mask.all():
            pooled[mask] = x.sum(1)
        counts[mask] = torch.tensor([5])
        return [torch.masked_select(x, mask.view(-1, 1, 1)), pooled, lengths[mask], x[mask], counts + 1]

    with SingleRequestMode():
        followed = rows(lengths_of(3))

    for ours, theirs in zip(followed, rows(torch.tensor([3])), strict=True):
        assert ours.tolist() == theirs.tolist()
        assert (known := known_values(ours)) is None or known.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.bitwise_xor_(3),
        lambda n: n.__setitem__(0, 3),
        lambda n: n.copy_(torch.tensor([3])),
        lambda n: n.fill_(3),
    ],
    ids=["bitwise_xor_", "setitem", "copy_", "fill_"],
)
def test_a_number_that_is_changed_in_another_way_is_no_longer_known(change: Callable[[Tensor], Any]) -> None:
    with SingleRequestMode():
        lengths = lengths_of(7)
        change(lengths)

    assert known_values(lengths) is None


EXAMPLE = 23


def symbolic_timesteps() -> torch.SymInt:
    shapes = ShapeEnv()
    source = ConstantSource("timesteps")
    symbol = shapes.create_symbol(EXAMPLE, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    size = shapes.create_symintnode(symbol, hint=EXAMPLE, source=source)
    assert isinstance(size, torch.SymInt)
    return size


def at(result: object, timesteps: int) -> int:
    expression = sympy.sympify(result.node.expr if isinstance(result, torch.SymInt) else result)
    return int(expression.xreplace(dict.fromkeys(expression.free_symbols, sympy.Integer(timesteps))))


@pytest.mark.ci
@given(
    name=st.sampled_from(["eq", "ne"]),
    slope=st.integers(1, 3),
    offset=st.integers(0, 4),
    modulus=st.integers(2, 6),
    residue=st.integers(-1, 7),
)
def test_an_indicator_is_1_where_the_condition_holds(
    name: str, slope: int, offset: int, modulus: int, residue: int
) -> None:
    condition = compared(name, (slope * symbolic_timesteps() + offset) % modulus, residue)
    try:
        result = indicator(condition)
    except NoQuotient:
        assert not 0 <= residue < modulus
        return

    for timesteps in range(2, 40):
        holds = getattr(operator, name)((slope * timesteps + offset) % modulus, residue)
        assert at(result, timesteps) == int(holds), timesteps


@given(st.sampled_from(["eq", "ne"]), st.sampled_from(["eq", "ne"]), st.integers(0, 2), st.integers(0, 1))
def test_an_indicator_may_be_compared_again(first: str, second: str, residue: int, number: int) -> None:
    """`(n % 3 == 1) == 0` is a condition on an indicator: followed or refused, never another number."""
    condition = compared(second, compared(first, symbolic_timesteps() % 3, residue), number)
    try:
        result = indicator(condition)
    except NoQuotient:
        return

    for timesteps in range(2, 20):
        inner = getattr(operator, first)(timesteps % 3, residue)
        assert at(result, timesteps) == int(getattr(operator, second)(int(inner), number)), timesteps


@pytest.mark.parametrize("name", ["lt", "ge", "eq"])
def test_conditions_on_the_size_itself_are_refused(name: str) -> None:
    with pytest.raises(NoQuotient):
        indicator(compared(name, symbolic_timesteps(), 7))


@pytest.mark.parametrize(("name", "number", "result"), [("ge", 2, 1), ("lt", 2, 0), ("ne", 1, 1), ("eq", 1, 0)])
def test_conditions_that_the_bounds_of_the_size_decide_are_numbers(name: str, number: int, result: int) -> None:
    """The size is 2 or more."""
    assert int(indicator(compared(name, symbolic_timesteps(), number))) == result
