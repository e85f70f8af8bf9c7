"""Shapes that the exporter excludes: included where the program is compared with the model there."""

from typing import Any

import numpy as np
import pytest
import torch
from input_configs import one_input
from ragged import lower_exact
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.errors import LoweringError
from torchserve_neuron_lstm.lowering.one_request.comparison import Comparison, Run

CONFIG = one_input("[batch, time, 5]", length="[16, 32]")


class Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv1d(5, 5, 3, stride=2, padding=1)
        self.gru = nn.GRU(5, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.gru(self.frames(x.transpose(1, 2)).transpose(1, 2))[0]
        return states


@pytest.mark.ci
def test_a_model_with_a_stride_runs_in_every_shape() -> None:
    """A row of one or two timesteps has one frame, which the exporter excludes."""
    model = Strided()

    program = lower(model, CONFIG)

    assert program.any_shape
    run = program.exported.module()
    for rows in (1, 2, 8):
        for time in (1, 2, 3, 16):
            x = torch.randn(rows, time, 5)
            with torch.no_grad():
                torch.testing.assert_close(run(x, torch.full((rows,), time))[0], model(x))


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(10, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        rows, steps, features = x.shape
        pairs = x[:, : (steps // 2) * 2].contiguous().view(rows, steps // 2, 2 * features)
        halved = torch.div(lengths, 2, rounding_mode="trunc")
        packed = pack_padded_sequence(pairs, halved, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)


class Pyramid(Pairs):
    """Two layers of pairs; the second takes the lengths that unpacking the first one has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.upper = Pairs()
        self.narrow = nn.Linear(12, 5)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        states, halved = super().forward(x, lengths)
        above: tuple[Tensor, Tensor] = self.upper(self.narrow(states), halved)
        return above


@pytest.mark.ci
def test_pairs_of_timesteps_run_in_buckets_of_even_and_odd_length() -> None:
    """The exporter excludes one of the two, as a slice has gaps in memory in the other."""
    config = one_input("[batch, time, 5]", "lengths: lengths", batch="[1, 4]", length="[8, 23, 32]")

    assert lower_exact(Pyramid(), config, ([32, 4, 9, 23], [6], [8, 5], [23, 22, 7])).shortest == 4


@pytest.mark.ci
def test_conditions_stay_if_an_excluded_shape_answers_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Comparison.check

    def wrong_for_two_rows(self: Comparison, run: Run, lengths: list[int], time: int) -> None:
        check(self, run, lengths, time)
        if len(lengths) == 2 and time == 2:
            raise LoweringError("another answer")

    monkeypatch.setattr(Comparison, "check", wrong_for_two_rows)
    program = lower(Strided(), CONFIG)

    assert not program.any_shape
    with pytest.raises(AssertionError, match="Guard failed"):
        program.exported.module()(torch.randn(2, 2, 5), torch.tensor([2, 2]))


class Trimmed(Strided):
    """A part of its timesteps whose size falls from 59 timesteps to 60: 21, and then 20."""

    def forward(self, x: Tensor) -> Tensor:
        third = x.size(1) // 3
        states: Tensor = self.gru(x)[0]
        return states[:, third : x.size(1) - third].sum(1)


class LastThirty(Strided):
    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.gru(x)[0]
        return states[:, -30:].sum(1)


def test_a_size_that_falls_for_a_longer_request_is_refused_with_its_line() -> None:
    """Padded to 60 timesteps, a row of 59 would lose a timestep."""
    with pytest.raises(LoweringError, match=r"a shorter request may have the greater size of .* \(at .*third : x"):
        lower(Trimmed(), CONFIG)


def test_a_slice_that_is_longer_than_some_requests_is_refused() -> None:
    """In a row without padding, the last timestep would be read again; with padding, a zero is."""
    with pytest.raises(LoweringError, match=r"differs from that of a request alone \(16 timesteps\)"):
        lower(LastThirty(), CONFIG)


class FirstMarked(nn.Module):
    """A state at a timestep that its values choose."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.gru(x)[0]
        return states.gather(1, x[:, :, 0].max(1)[1].view(-1, 1, 1).expand(-1, 1, 6))


def test_a_state_at_a_computed_timestep_is_not_taken_for_the_last_one() -> None:
    assert lower_exact(FirstMarked(), CONFIG, [[16, 7, 1]]).chunked is None


class Shifted(Strided):
    """Eager mode answers 5 timesteps in another way."""

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.gru(x)[0]
        try:
            return states * (1 / (x.size(1) - 5))
        except ZeroDivisionError:
            return states


class Powered(Strided):
    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.gru(x)[0]
        return states * x.size(1) ** 13


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Shifted(), r"a divisor is 0 for 5 timesteps \(at .*- 5"),
        (Powered(), r"beyond int64 for 32 timesteps \(at .*13"),
    ],
)
def test_a_number_that_eager_mode_does_not_compute_is_refused_with_its_line(model: nn.Module, words: str) -> None:
    with pytest.raises(LoweringError, match=words):
        lower(model, CONFIG)


class FarShare(nn.Module):
    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype, self.gru = dtype, nn.GRU(5, 6, batch_first=True)

    def forward(self, x: Tensor, n: Any) -> Tensor:
        places = torch.from_numpy(np.floor(n.astype(self.dtype) * 0.575).astype(np.int64))
        states: Tensor = self.gru(x)[0]
        return states[torch.arange(states.size(0)), places]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_lengths_that_numpy_rounds_or_wraps_are_refused_with_the_line(dtype: str) -> None:
    config = one_input("[batch, time, 5]", "lengths: {names: [n], type: numpy}", length="[16, 32]")
    with pytest.raises(LoweringError, match=rf"computed in numpy's {dtype} \(at .*astype"):
        lower(FarShare(dtype), config)


class AboveItsShare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(1) > 1 / x.size(1)


def test_a_share_is_compared_in_the_precision_of_the_tensor() -> None:
    """1 / 3 in double is greater than in float32."""
    lowered = lower(AboveItsShare(), CONFIG)
    x = torch.zeros(1, 3, 5)
    padded = torch.cat([x, torch.randn(1, 13, 5)], 1)

    answer = lowered.exported.module()(padded, torch.tensor([3]))[0]

    assert torch.equal(answer[:, :3], AboveItsShare()(x))
