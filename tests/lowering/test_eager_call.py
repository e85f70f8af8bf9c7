"""Models that need more than one timestep: found in eager mode, and exact from there on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from input_configs import one_input
from ragged import assert_answers_alone, lower_exact
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.eager_call import call_eagerly
from torchserve_neuron_lstm.lowering.errors import LoweringError

CONFIG = one_input("[batch, time, 5]", length="[8, 16]")


class Demanding(nn.Module):
    def __init__(self, function: Callable[[Demanding, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Conv1d(5, 5, 3)
        self.second = nn.Conv1d(5, 5, 3)
        self.norm = nn.InstanceNorm1d(5)
        self.gru = nn.GRU(5, 6, batch_first=True)
        self.pairs = nn.GRU(10, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def valid_convolutions(m: Demanding, x: Tensor) -> Tensor:
    y: Tensor = m.gru(torch.tanh(m.second(torch.tanh(m.first(x.transpose(1, 2))))).transpose(1, 2))[0]
    return y


def instance_norm(m: Demanding, x: Tensor) -> Tensor:
    """Statistics over time, which torch refuses for one timestep."""
    y: Tensor = m.gru(m.norm(x.transpose(1, 2)).transpose(1, 2))[0]
    return y


def last_three(m: Demanding, x: Tensor) -> Tensor:
    return x[:, -3:].reshape(x.size(0), 15)


def last_three_states(m: Demanding, x: Tensor) -> Tensor:
    y: Tensor = m.gru(x)[0][:, -3:]
    return y


def pyramid(m: Demanding, x: Tensor) -> Tensor:
    x = x[:, : x.size(1) // 2 * 2]
    y: Tensor = m.pairs(x.reshape(x.size(0), x.size(1) // 2, 10))[0]
    return y


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("function", "shortest"),
    [(valid_convolutions, 5), (instance_norm, 2), (last_three, 3), (last_three_states, 3), (pyramid, 2)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_model_is_exact_from_the_fewest_timesteps_that_it_takes(
    function: Callable[[Demanding, Tensor], Tensor], shortest: int
) -> None:
    program = lower_exact(Demanding(function), CONFIG, [[16, shortest, 9, shortest + 1]])

    assert program.shortest == shortest


class Samples(nn.Module):
    """Frames of samples of sound, a norm over each request, and a recurrence, as in PyanNet."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv1d(1, 5, 251, stride=10)
        self.norm = nn.InstanceNorm1d(5)
        self.gru = nn.GRU(5, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.max_pool1d(self.frames(x).abs(), 3)
        y: Tensor = self.gru(self.norm(pooled).transpose(1, 2))[0]
        return y


@pytest.mark.ci
def test_a_model_of_samples_may_need_hundreds_of_timesteps() -> None:
    """They are more than are tried one by one."""
    config = one_input("[batch, 1, time]", length="[400, 800]")

    assert lower_exact(Samples(), config, ([800, 301, 399], [302, 330, 331])).shortest == 301


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv1d(5, 5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y = self.frames(x.transpose(1, 2)).transpose(1, 2)
        real = torch.arange(y.size(1)).unsqueeze(0) < (lengths - 2).unsqueeze(1)
        return torch.where(real.unsqueeze(2), y, -1e30).max(1)[0]


def test_the_fewest_timesteps_of_a_masked_model_are_found() -> None:
    model, config = Masked(), one_input("[batch, time, 5]", "lengths: lengths", length="[8, 16]")

    program = lower(model, config)

    assert program.shortest == 3
    assert_answers_alone(model, config, program, ([16, 3, 9, 4], [5, 6, 7, 8], [10, 11, 12, 13, 14, 15]))


@pytest.mark.ci
def test_a_row_that_fills_a_batch_has_one_timestep_and_changes_nothing() -> None:
    """Filling rows are shorter than any request; engines must not see a negative length."""
    program = lower(Demanding(valid_convolutions), CONFIG)
    x = torch.randn(2, 16, 5)

    with torch.no_grad():
        alone_in_batch = program.exported.module()(x, torch.tensor([16, 1]))[0][0]
        full = program.exported.module()(x, torch.tensor([16, 16]))[0][0]

    assert torch.equal(alone_in_batch, full)


@pytest.mark.ci
def test_buckets_below_the_fewest_timesteps_are_refused_with_those_to_keep() -> None:
    with pytest.raises(LoweringError, match=r"buckets of 4 timesteps: leave them out of buckets\.length, and keep 16"):
        lower(Demanding(valid_convolutions), one_input("[batch, time, 5]"))


def test_a_model_of_any_length_takes_one_timestep() -> None:
    assert lower(Demanding(lambda m, x: m.gru(x)[0]), CONFIG).shortest == 1


def test_an_answer_stays_as_it_was_if_the_model_writes_into_its_outputs() -> None:
    class OwnBuffer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.total.copy_(x.sum(1))

    model = OwnBuffer()
    first = call_eagerly(model, {"x": torch.ones(1, 3)})
    assert call_eagerly(model, {"x": torch.ones(1, 5)}) == 5
    assert first == 3
