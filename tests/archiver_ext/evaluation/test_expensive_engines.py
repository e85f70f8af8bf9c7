"""Decision whether an engine that compiles each bucket slowly is compiled for all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.archiver_ext.evaluation.expensive_engines import (
    DISTURBED_MARGIN,
    MARGIN,
    could_win,
    first_buckets,
)
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid

TIMES = st.floats(1e-3, 1e6)
SIZES = st.sets(st.integers(1, 512), min_size=1, max_size=6).map(lambda sizes: tuple(sorted(sizes)))


@given(TIMES, TIMES)
def test_an_engine_that_is_expected_to_be_slower_is_left_out(one: float, other: float) -> None:
    """At most one of two engines could win against the other."""
    assert not (could_win(one, other) and could_win(other, one))
    assert not could_win(max(one, other), min(one, other))


@given(TIMES, TIMES, st.booleans())
def test_an_engine_that_saves_more_than_the_margin_is_compiled(
    expected: float, fastest: float, undisturbed: bool
) -> None:
    """The margin is a share of the other engine's time."""
    margin = MARGIN if undisturbed else DISTURBED_MARGIN
    assert could_win(expected, fastest, undisturbed=undisturbed) == (expected < (1 - margin) * fastest)
    assert could_win(0.99 * (1 - margin) * fastest, fastest, undisturbed=undisturbed)


@given(TIMES, TIMES)
def test_a_disturbed_comparison_compiles_no_more_than_an_undisturbed_one(expected: float, fastest: float) -> None:
    """A busy machine slows down engines with several threads most."""
    if could_win(expected, fastest, undisturbed=False):
        assert could_win(expected, fastest)


@given(TIMES, TIMES, st.floats(0, 1))
def test_a_faster_engine_is_never_left_out_for_a_slower_one(expected: float, fastest: float, share: float) -> None:
    """The decision is monotone in both times."""
    if could_win(expected, fastest):
        assert could_win(share * expected, fastest)
        assert could_win(expected, fastest / max(share, 1e-3))


@given(TIMES, TIMES, st.sampled_from([2.0**-10, 2.0**10]))
def test_the_unit_of_the_times_does_not_count(expected: float, fastest: float, unit: float) -> None:
    """Seconds and milliseconds give the same decision."""
    assert could_win(expected, fastest) == could_win(unit * expected, unit * fastest)


def test_a_small_gain_is_not_worth_the_wait() -> None:
    """The expectation is too low rather than too high."""
    assert 0 < MARGIN < 0.5
    assert not could_win(0.95, 1.0)


@given(SIZES, SIZES)
def test_first_buckets_are_two_at_most_and_hold_the_largest(batches: tuple[int, ...], lengths: tuple[int, ...]) -> None:
    """They are of the grid, different, and have the largest number of rows and of timesteps."""
    grid = BucketGrid(batches, lengths)
    chosen = first_buckets(grid)

    assert 1 <= len(set(chosen)) == len(chosen) <= 2
    assert set(chosen) <= set(grid.buckets)
    assert chosen[-1] == grid.buckets[-1]
