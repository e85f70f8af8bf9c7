"""Conditions on sizes as numbers, against the conditions at every number of timesteps."""

from __future__ import annotations

import operator

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from torchserve_neuron_lstm.lowering.one_request.indicators import compared, indicator
from torchserve_neuron_lstm.lowering.one_request.quotients import NoQuotient

EXAMPLE = 23


def symbolic_timesteps() -> torch.SymInt:
    """Return a size whose value the exporter does not know."""
    shapes = ShapeEnv()
    source = ConstantSource("timesteps")
    symbol = shapes.create_symbol(EXAMPLE, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
    size = shapes.create_symintnode(symbol, hint=EXAMPLE, source=source)
    assert isinstance(size, torch.SymInt)
    return size


def at(result: object, timesteps: int) -> int:
    """Return the value of an expression of the size at a number of timesteps."""
    expression = sympy.sympify(result.node.expr if isinstance(result, torch.SymInt) else result)
    return int(expression.xreplace(dict.fromkeys(expression.free_symbols, sympy.Integer(timesteps))))


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
    """Also a residue that no number has, which may be refused."""
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
    """No expression is known that is 1 where they hold."""
    with pytest.raises(NoQuotient):
        indicator(compared(name, symbolic_timesteps(), 7))


@pytest.mark.parametrize(("name", "number", "result"), [("ge", 2, 1), ("lt", 2, 0), ("ne", 1, 1), ("eq", 1, 0)])
def test_conditions_that_the_bounds_of_the_size_decide_are_numbers(name: str, number: int, result: int) -> None:
    """The size is 2 or more."""
    assert int(indicator(compared(name, symbolic_timesteps(), number))) == result
