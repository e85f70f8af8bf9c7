from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.training.packed_layout import PackedLayout, batch_sizes_of, packed_layout, time_segments

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12).map(lambda rows: sorted(rows, reverse=True))


def steps(lengths: list[int]) -> PackedLayout:
    """The steps of rows with these lengths."""
    return packed_layout(batch_sizes_of(lengths))


@given(LENGTHS)
def test_lengths_and_batch_sizes_tell_the_same(lengths: list[int]) -> None:
    """Each can be computed from the other, and both equal torch's."""
    of = steps(lengths)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.zeros(lengths[0], len(lengths)), torch.tensor(lengths))

    assert of.lengths.tolist() == lengths
    assert list(of.active) == packed.batch_sizes.tolist()
    assert (of.longest, of.rows, of.count) == (lengths[0], len(lengths), sum(lengths))
    assert of.uniform == (len(set(lengths)) == 1)


@given(LENGTHS)
def test_places_are_the_real_timesteps_in_packed_order(lengths: list[int]) -> None:
    """They go step by step, with the active rows of each."""
    step, row = steps(lengths).positions(CPU)

    assert list(zip(step.tolist(), row.tolist(), strict=True)) == [
        (t, b) for t in range(lengths[0]) for b in range(len(lengths)) if t < lengths[b]
    ]


@given(LENGTHS)
def test_reversal_turns_each_row_and_is_its_own_inverse(lengths: list[int]) -> None:
    """Timestep t of a row of n is exchanged with n - 1 - t of the same row."""
    of = steps(lengths)
    step, row = of.positions(CPU)
    mirror = of.reversal(CPU)

    assert torch.equal(row[mirror], row)
    assert torch.equal(step[mirror], torch.tensor(lengths)[row] - 1 - step)
    assert torch.equal(mirror[mirror], torch.arange(sum(lengths)))


@given(LENGTHS, st.integers(0, 20))
def test_segments_hold_the_timesteps_of_packed_data_in_order(lengths: list[int], overhead: int) -> None:
    """Each has its timesteps at their places in a padded block, and the ends of the rows among them."""
    of = steps(lengths)
    step, row = of.positions(CPU)
    met, ended = 0, []
    for cut in time_segments(of.active, overhead, 10**6):
        places = of.segment_indices(cut, CPU)
        own = slice(met, met + cut.real_timesteps)
        met += cut.real_timesteps
        assert torch.equal(places, (step[own] - cut.start) * cut.rows + row[own])
        last = of.last_indices(cut, CPU)
        ended += [(cut.start + place // cut.rows + 1, place % cut.rows) for place in last.tolist()]

    assert met == of.count
    assert sorted(ended, key=lambda pair: pair[1]) == [(length, row) for row, length in enumerate(lengths)]


def test_batch_sizes_that_were_written_to_are_read_again() -> None:
    """A cached layout is valid until the tensor is changed."""
    batch_sizes = torch.tensor([2, 2])
    before = packed_layout(batch_sizes)
    again = packed_layout(batch_sizes)
    batch_sizes[1] = 1

    assert again is before
    assert packed_layout(batch_sizes).active == (2, 1)
