import io
import operator
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.training import packed_layout as packed_layout_file
from torchserve_neuron_lstm.training.packed_layout import PackedLayout, batch_sizes_of, packed_layout, time_segments

CPU, META = torch.device("cpu"), torch.device("meta")
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12).map(lambda rows: sorted(rows, reverse=True))


def steps(lengths: list[int]) -> PackedLayout:
    return packed_layout(batch_sizes_of(np.array(lengths)))


@given(LENGTHS)
def test_lengths_and_batch_sizes_tell_the_same(lengths: list[int]) -> None:
    of = steps(lengths)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.zeros(lengths[0], len(lengths)), torch.tensor(lengths))

    assert of.lengths.tolist() == lengths
    assert list(of.active) == packed.batch_sizes.tolist()
    assert (of.longest, of.rows, of.count) == (lengths[0], len(lengths), sum(lengths))
    assert of.uniform == (len(set(lengths)) == 1)


@given(LENGTHS)
def test_places_are_the_real_timesteps_in_packed_order(lengths: list[int]) -> None:
    step, row = steps(lengths).positions(CPU)

    assert list(zip(step.tolist(), row.tolist(), strict=True)) == [
        (t, b) for t in range(lengths[0]) for b in range(len(lengths)) if t < lengths[b]
    ]


@given(LENGTHS, st.integers(0, 2))
def test_batch_first_indices_point_to_the_same_timesteps(lengths: list[int], longer: int) -> None:
    of, size = steps(lengths), lengths[0] + longer
    step, row = of.positions(CPU)
    index = of.batch_first_indices(size, CPU)

    assert torch.equal(index // size, row)
    assert torch.equal(index % size, step)


@given(LENGTHS)
def test_reversal_turns_each_row_and_is_its_own_inverse(lengths: list[int]) -> None:
    of = steps(lengths)
    step, row = of.positions(CPU)
    mirror = of.reversal(CPU)

    assert torch.equal(row[mirror], row)
    assert torch.equal(step[mirror], torch.tensor(lengths)[row] - 1 - step)
    assert torch.equal(mirror[mirror], torch.arange(sum(lengths)))


@given(LENGTHS, st.integers(0, 20))
def test_segments_hold_the_timesteps_of_packed_data_in_order(lengths: list[int], overhead: int) -> None:
    of = steps(lengths)
    step, row = of.positions(CPU)
    met, ended = 0, []
    for cut in time_segments(of.active, overhead, 10**6):
        places, last = of.segment_indices(cut, CPU)
        own = slice(met, met + cut.real_timesteps)
        met += cut.real_timesteps
        assert torch.equal(places, (step[own] - cut.start) * cut.rows + row[own])
        ended += [(cut.start + place // cut.rows + 1, place % cut.rows) for place in last.tolist()]

    assert met == of.count
    assert sorted(ended, key=lambda pair: pair[1]) == [(length, row) for row, length in enumerate(lengths)]


def test_batch_sizes_that_were_written_to_are_read_again() -> None:
    batch_sizes = torch.tensor([2, 2])
    before = packed_layout(batch_sizes)
    again = packed_layout(batch_sizes)
    batch_sizes[1] = 1

    assert again is before
    assert packed_layout(batch_sizes).active == (2, 1)


def test_a_layout_goes_with_its_batch_sizes() -> None:
    """It is no part of the tensor, which is saved as any other, and it is released with it."""
    batch_sizes = torch.tensor([2, 1])
    released = weakref.ref(packed_layout(batch_sizes))
    file = io.BytesIO()
    torch.save(batch_sizes, file)
    file.seek(0)

    assert torch.equal(torch.load(file, weights_only=True), batch_sizes)
    assert released() is not None
    del batch_sizes
    assert released() is None


class HostCopies:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def __call__(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.tensors.append(tensor)
        return tensor.to(device)


@pytest.fixture
def host_copies(monkeypatch: pytest.MonkeyPatch) -> HostCopies:
    copies = HostCopies()
    monkeypatch.setattr(packed_layout_file, "copied_from_host", copies)
    return copies


def indices(of: PackedLayout, device: torch.device) -> list[torch.Tensor]:
    (cut,) = time_segments(of.active, 10**6, 10**6)
    return [
        *of.segment_indices(cut, device),
        of.padded_indices(device),
        of.reversal(device),
        of.batch_first_indices(4, device),
    ]


def test_indices_of_few_timesteps_are_computed_by_the_host(host_copies: HostCopies) -> None:
    expected, of = indices(steps([4, 3, 1]), CPU), steps([4, 3, 1])
    found = [indices(of, META), indices(of, META)]

    real, last, padded, *others = (tensor.tolist() for tensor in expected)
    assert padded == real
    assert [tensor.tolist() for tensor in host_copies.tensors] == [real + last, *others]
    assert {tensor.device for tensor in found[0]} == {META}
    assert all(map(operator.is_, *found))


def test_indices_of_many_timesteps_are_computed_by_the_gpu(
    host_copies: HostCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_layout_file, "_HOST_TIMESTEPS", 7)
    found = indices(steps([4, 3, 1]), META)

    assert [tensor.tolist() for tensor in host_copies.tensors] == [[3, 2, 2, 1, 0, 3, 5, 7, 4, 3, 1]]
    assert [len(tensor) for tensor in found] == [8, 3, 8, 8, 8]
