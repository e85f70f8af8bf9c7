from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.training.packed_layout import time_segments
from torchserve_neuron_lstm.training.recurrence import call_overhead, gpu_call_overhead, max_segment

ACTIVE = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda rows: sorted(rows, reverse=True))
OVERHEADS = st.sampled_from([0, 1, 7, 100, 10**6])
LIMITS = st.sampled_from([1, 40, 97, 10**6])


@given(ACTIVE, OVERHEADS, LIMITS)
def test_segments_follow_each_other_from_first_to_last_step(active: list[int], overhead: int, limit: int) -> None:
    segments = list(time_segments(active, overhead, limit))

    assert [step for segment in segments for step in range(segment.start, segment.end)] == list(range(len(active)))
    assert [segment.rows for segment in segments] == [active[segment.start] for segment in segments]
    assert [segment.survivors for segment in segments] == [segment.rows for segment in segments[1:]] + [0]
    assert [segment.real_timesteps for segment in segments] == [
        sum(active[segment.start : segment.end]) for segment in segments
    ]


@given(ACTIVE, OVERHEADS, LIMITS)
def test_no_segment_wastes_more_than_a_call_costs(active: list[int], overhead: int, limit: int) -> None:
    for segment in time_segments(active, overhead, limit):
        assert (
            segment.timesteps == 1
            or segment.rows * segment.timesteps - segment.real_timesteps < overhead
            or overhead == 0
        )
        assert segment.timesteps == 1 or segment.rows * segment.timesteps <= limit


@given(st.integers(1, 40), st.integers(1, 60))
def test_rows_of_one_length_are_not_split(rows: int, steps: int) -> None:
    (segment,) = time_segments([rows] * steps, 1, 10**6)

    assert segment.full
    assert (segment.rows, segment.timesteps) == (rows, steps)


def test_larger_layers_are_cut_more_often_and_hold_less() -> None:
    """A call is cheap compared with them, and they keep more memory for each timestep."""
    sizes = (32, 256, 2048)

    overheads = [call_overhead(8 * hidden**2) for hidden in sizes]
    limits = [max_segment(4 * hidden) for hidden in sizes]
    assert sorted(overheads, reverse=True) == overheads
    assert sorted(limits, reverse=True) == limits
    assert max_segment(10**9) == 1


def test_a_gpu_takes_a_batch_of_a_small_layer_in_one_call() -> None:
    """Its steps cost the same for any number of rows."""
    active = [256 - step for step in range(256)]
    overhead = gpu_call_overhead(4 * 32 * 48, sum(active))

    assert len([*time_segments(active, overhead, 256 * 256)]) == 1


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=300), st.integers(100, 10**7))
def test_a_call_on_a_gpu_has_no_more_padding_than_real_timesteps(lengths: list[int], weights: int) -> None:
    """But for small batches: one long row among many short ones does not take their memory to its end."""
    active = [sum(length > step for length in lengths) for step in range(max(lengths))]
    overhead = gpu_call_overhead(weights, sum(active))

    for segment in time_segments(active, overhead, len(lengths) * len(active)):
        assert segment.rows * segment.timesteps - segment.real_timesteps <= max(sum(active), 2**14)
