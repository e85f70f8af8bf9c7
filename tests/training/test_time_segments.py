from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.training.packed_layout import call_overhead, max_segment, time_segments

ALIVE = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda rows: sorted(rows, reverse=True))
PRICES = st.sampled_from([0, 1, 7, 100, 10**6])
LIMITS = st.sampled_from([1, 40, 97, 10**6])


@given(ALIVE, PRICES, LIMITS)
def test_stretches_follow_each_other_from_the_first_step_to_the_last(alive: list[int], price: int, limit: int) -> None:
    """Every step is in one of them, and each begins with the rows that survived the one before."""
    cuts = list(time_segments(alive, price, limit))

    assert [step for cut in cuts for step in range(cut.start, cut.end)] == list(range(len(alive)))
    assert [cut.rows for cut in cuts] == [alive[cut.start] for cut in cuts]
    assert [cut.survivors for cut in cuts] == [cut.rows for cut in cuts[1:]] + [0]
    assert [cut.real_timesteps for cut in cuts] == [sum(alive[cut.start : cut.end]) for cut in cuts]


@given(ALIVE, PRICES, LIMITS)
def test_no_stretch_wastes_more_than_a_call_costs(alive: list[int], price: int, limit: int) -> None:
    """Its dead timesteps are below the price, and it holds no more than the limit, unless it is a single step."""
    for cut in time_segments(alive, price, limit):
        assert cut.timesteps == 1 or cut.rows * cut.timesteps - cut.real_timesteps < price or price == 0
        assert cut.timesteps == 1 or cut.rows * cut.timesteps <= limit


@given(st.integers(1, 40), st.integers(1, 60))
def test_rows_of_one_length_are_not_cut_for_the_dead(rows: int, steps: int) -> None:
    """Nobody dies, so one call does it, and it is full."""
    (cut,) = time_segments([rows] * steps, 1, 10**6)

    assert cut.full
    assert (cut.rows, cut.timesteps) == (rows, steps)


def test_larger_layers_are_cut_more_often_and_hold_less() -> None:
    """A call is cheaper beside them, and they keep more of each timestep."""
    sizes = (32, 256, 2048)

    assert sorted([call_overhead(8 * hidden**2) for hidden in sizes], reverse=True) == [
        call_overhead(8 * h**2) for h in sizes
    ]
    assert sorted([max_segment(4 * hidden) for hidden in sizes], reverse=True) == [max_segment(4 * h) for h in sizes]
    assert max_segment(10**9) == 1
