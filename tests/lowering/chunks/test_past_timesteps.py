"""Causal convolutions and shifts: chunks get the timesteps before them from the chunk before."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from chunked_models import assert_chunks_equal_whole_sequences
from input_configs import config_of, one_input
from long_cases import with_long
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

from . import past_models
from .past_models import CAUSAL, NOT_CAUSAL, Convolutional, Recurrent, stacked

CONFIG = one_input("[batch, time, 3]", batch="[1, 4]", length="[4, 9]")
CONFIG_WITH_START = config_of(
    "{x: {dtype: float32, shape: [batch, time, 3]}, start: {dtype: float32, shape: [batch, 3]}}",
    batch="[1, 4]",
    length="[4, 9]",
)
LENGTHS = (9, 8, 5, 3, 1, 1)
_WITHOUT_RECURRENCE = [
    before for before, past in CAUSAL.items() if past and before is not past_models.after_the_recurrence
]
ALL = [*((before, Recurrent) for before in CAUSAL), *((before, Convolutional) for before in _WITHOUT_RECURRENCE)]
_USUAL = """
    cut_after gated padded_once_for_two stacked spectral gated_linear_units transposed_with_padding shifted
    teacher_forced after_the_recurrence
"""
USUAL = (*((getattr(past_models, name), Recurrent) for name in _USUAL.split()), (stacked, Convolutional))
"""Each kind of read; the others are further forms of them."""


@cache
def lowered(before: Callable[..., Any], kind: Callable[..., nn.Module] = Recurrent) -> tuple[nn.Module, LoweredModel]:
    torch.manual_seed(0)
    model = kind(before).eval()
    return model, lower(model, CONFIG)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("before", "kind"),
    [pytest.param(*case, marks=() if case in USUAL else pytest.mark.long) for case in ALL],
    ids=lambda one: one.__name__,
)
def test_chunks_cut_anywhere_equal_the_whole_sequence(
    before: Callable[..., Any], kind: Callable[..., nn.Module]
) -> None:
    model, program = lowered(before, kind)
    assert program.chunked is not None
    past = [value.spec.shape for value in program.chunked.carried if value.spec.name.endswith(".past")]

    assert past == CAUSAL[before]
    assert len(program.chunked.carried) == len(past) + (kind is Recurrent)
    assert_chunks_equal_whole_sequences(model, program, [[torch.randn(length, 3)] for length in LENGTHS], LENGTHS)


class StartsFromAnInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor, start: Tensor) -> Any:
        return self.gru(torch.cat([torch.tanh(start)[:, None], x[:, :-1]], 1))[0]


@pytest.mark.ci
def test_what_is_before_the_first_timestep_may_be_computed_from_an_input() -> None:
    model = StartsFromAnInput().eval()
    program = lower(model, CONFIG_WITH_START)

    requests = [[torch.randn(length, 3), torch.randn(3)] for length in LENGTHS]
    assert_chunks_equal_whole_sequences(model, program, requests, LENGTHS)


class StartsFromItsMean(StartsFromAnInput):
    def forward(self, x: Tensor, start: Tensor) -> Any:
        return super().forward(x, start + x.mean(1))


@pytest.mark.ci
def test_what_is_before_the_first_timestep_may_not_need_the_later_ones() -> None:
    program = lower(StartsFromItsMean().eval(), CONFIG_WITH_START)

    assert program.chunked is None
    assert "needs the end of the sequence at every timestep" in program.chunking_reason


def test_without_a_recurrence_and_a_past_nothing_is_carried() -> None:
    """A model that carries nothing cannot have sessions."""
    _, program = lowered(past_models.per_timestep, Convolutional)

    assert (program.chunked, program.chunking_reason) == (None, "there is no recurrence over time")


@pytest.mark.ci
def test_what_was_before_the_first_timestep_is_the_constant_of_the_model() -> None:
    _, program = lowered(past_models.shifted_by_concatenation)
    assert program.chunked is not None

    assert {value.fill for value in program.chunked.carried if value.spec.name.endswith(".past")} == {-1.5}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "before",
    with_long(NOT_CAUSAL, "cut_at_the_begin", "padded_twice", "mirrored", "scaled_by_its_length"),
    ids=lambda one: one.__name__,
)
def test_other_reads_of_timesteps_are_not_chunked(before: Callable[..., Any]) -> None:
    _, program = lowered(before)

    assert program.chunked is None
    assert "past_models.py:" in program.chunking_reason
