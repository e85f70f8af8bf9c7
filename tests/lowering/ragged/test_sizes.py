import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy import functions

from torchserve_neuron_lstm.lowering.ragged.sizes import are_equal, simplified

T = sympy.Symbol("T", integer=True, positive=True)
SMALL = st.integers(-3, 4)
DIVISORS = st.integers(1, 4)
TIMESTEPS = range(1, 61)
"""More than the period of each pair of sizes that is drawn, so that a difference shows."""


def linear(slope: int, offset: int) -> sympy.Expr:
    return slope * T + offset


def sizes() -> st.SearchStrategy[sympy.Expr]:
    polynomials = st.builds(linear, SMALL, SMALL)
    rounded = st.one_of(
        st.builds(functions.FloorDiv, polynomials, DIVISORS), st.builds(functions.PythonMod, polynomials, DIVISORS)
    )
    parts = st.one_of(polynomials, rounded)
    return st.one_of(parts, st.builds(lambda a, b: a + b, parts, parts), st.builds(lambda a, b: a * b, parts, parts))


def value(size: sympy.Expr, timesteps: int) -> int:
    return int(sympy.sympify(size).xreplace({T: sympy.Integer(timesteps)}))


def always_equal(first: sympy.Expr, second: sympy.Expr) -> bool:
    return all(value(first, timesteps) == value(second, timesteps) for timesteps in TIMESTEPS)


@given(sizes(), sizes())
def test_sizes_are_equal_if_they_are_at_every_number_of_timesteps(first: sympy.Expr, second: sympy.Expr) -> None:
    if are_equal(first, second):
        assert always_equal(first, second)
    elif value_degree(first) < 2 and value_degree(second) < 2:  # (T % 2) ** 2 is T % 2, which is not proved
        assert not always_equal(first, second)


@given(sizes(), DIVISORS)
def test_a_size_is_its_quotient_and_its_remainder(size: sympy.Expr, divisor: int) -> None:
    """Identities of this form are those that padding to a multiple needs."""
    whole = divisor * functions.FloorDiv(size, divisor) + functions.PythonMod(size, divisor)

    assert always_equal(whole, size)
    if value_degree(size) < 2:  # quotients of squares are not proved
        assert are_equal(whole, size)


def value_degree(size: sympy.Expr) -> int:
    if not size.free_symbols:
        return 0
    if size.is_Symbol:
        return 1
    degrees = [value_degree(argument) for argument in size.args]
    if isinstance(size, sympy.Pow):
        return 2
    return sum(degrees) if size.is_Mul else max(degrees)


@given(sizes(), st.integers(1, 5), st.integers(1, 9))
def test_a_size_that_differs_at_few_timesteps_is_another_size(size: sympy.Expr, period: int, offset: int) -> None:
    residue = offset % period
    indicator = 1 - functions.FloorDiv(functions.PythonMod(T - residue, period) + period - 1, period)

    assert not are_equal(size, size + indicator)


@given(st.integers(1, 4), DIVISORS, st.integers(1, 6))
def test_a_quotient_of_sizes_is_replaced_by_a_number_only_if_it_always_is_that(
    slope: int, divisor: int, factor: int
) -> None:
    """The two sizes are padded to a multiple, as those of packages of timesteps are."""
    quotient = functions.FloorDiv(
        factor * slope * (T + functions.PythonMod(-T, divisor)), slope * (T + functions.PythonMod(-T, divisor))
    )

    assert simplified(quotient) == factor


@given(sizes(), st.builds(linear, st.integers(1, 3), st.integers(0, 3)))
def test_simplified_sizes_have_the_same_values(dividend: sympy.Expr, divisor: sympy.Expr) -> None:
    quotient = functions.FloorDiv(dividend, divisor) if not dividend.is_Integer else dividend

    assert always_equal(simplified(sympy.sympify(quotient)), quotient)
