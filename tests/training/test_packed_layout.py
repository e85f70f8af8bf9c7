from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.training.packed_layout import Steps, batch_sizes_of, steps_of, stretches

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12).map(lambda rows: sorted(rows, reverse=True))


def steps(lengths: list[int]) -> Steps:
    """The steps of rows with these lengths."""
    return steps_of(batch_sizes_of(torch.tensor(lengths)))


@given(LENGTHS)
def test_lengths_and_batch_sizes_tell_the_same(lengths: list[int]) -> None:
    """Either is had from the other, and they are torch's."""
    of = steps(lengths)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.zeros(lengths[0], len(lengths)), torch.tensor(lengths))

    assert of.lengths.tolist() == lengths
    assert list(of.alive) == packed.batch_sizes.tolist()
    assert (of.longest, of.rows, of.count) == (lengths[0], len(lengths), sum(lengths))
    assert of.even == (len(set(lengths)) == 1)


@given(LENGTHS)
def test_places_are_the_real_timesteps_in_packed_order(lengths: list[int]) -> None:
    """Step by step, in each the rows that are alive."""
    step, row = steps(lengths).places(CPU)

    assert list(zip(step.tolist(), row.tolist(), strict=True)) == [
        (t, b) for t in range(lengths[0]) for b in range(len(lengths)) if t < lengths[b]
    ]


@given(LENGTHS)
def test_mirror_turns_each_row_and_is_its_own_inverse(lengths: list[int]) -> None:
    """Timestep t of a row of n changes places with n - 1 - t of the same row."""
    of = steps(lengths)
    step, row = of.places(CPU)
    mirror = of.mirror(CPU)

    assert torch.equal(row[mirror], row)
    assert torch.equal(step[mirror], torch.tensor(lengths)[row] - 1 - step)
    assert torch.equal(mirror[mirror], torch.arange(sum(lengths)))


@given(LENGTHS, st.integers(0, 20))
def test_stretches_hold_the_timesteps_of_packed_data_in_order(lengths: list[int], price: int) -> None:
    """Each has its own, at their places in a padded block, and knows which of them are the last of a row."""
    of = steps(lengths)
    step, row = of.places(CPU)
    met, ended = 0, []
    for cut in stretches(of.alive, price, 10**6):
        places = of.within(cut, CPU)
        own = slice(met, met + cut.real)
        met += cut.real
        assert torch.equal(places, (step[own] - cut.begin) * cut.rows + row[own])
        last = of.last_within(cut, CPU)
        ended += [(cut.begin + place // cut.rows + 1, place % cut.rows) for place in last.tolist()]

    assert met == of.count
    assert sorted(ended, key=lambda pair: pair[1]) == [(length, row) for row, length in enumerate(lengths)]


def test_batch_sizes_that_were_written_to_are_read_again() -> None:
    """What is known of a tensor holds as long as nobody changes it."""
    batch_sizes = torch.tensor([2, 2])
    before = steps_of(batch_sizes)
    again = steps_of(batch_sizes)
    batch_sizes[1] = 1

    assert again is before
    assert steps_of(batch_sizes).alive == (2, 1)
