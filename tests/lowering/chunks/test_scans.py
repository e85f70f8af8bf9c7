"""Loops over timesteps with cells of their own: the states of a scan go from chunk to chunk."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from chunked_models import assert_chunks_equal_whole_sequences
from input_configs import one_input
from torch import Tensor

from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

from ..loops import loop_models as loops
from ..loops.loop_models import Looping

CONFIG = one_input("[batch, time, 5]")
LENGTHS = (9, 8, 5, 3, 1, 1)


def leaky(m: Looping, x: Tensor) -> Any:
    h = m.start.expand(x.size(0), loops.HIDDEN)
    for t in range(x.size(1)):
        h = 0.5 * h + 0.5 * torch.tanh(m.first(x[:, t]) + h)
    return m.out(h)


def from_the_end(m: Looping, x: Tensor) -> Any:
    h, outputs = x.new_zeros(x.size(0), loops.HIDDEN), []
    for t in reversed(range(x.size(1))):
        h = 0.5 * h + torch.tanh(m.first(x[:, t]) + h)
        outputs.append(h)
    return torch.stack(outputs[::-1], 1)


def from_the_mean(m: Looping, x: Tensor) -> Any:
    h, outputs = m.first(x.mean(1)), []
    for t in range(x.size(1)):
        h = 0.5 * h + torch.tanh(m.first(x[:, t]) + h)
        outputs.append(h)
    return torch.stack(outputs, 1)


def with_the_mean(m: Looping, x: Tensor) -> Any:
    h, mean, outputs = x.new_zeros(x.size(0), loops.HIDDEN), m.first(x.mean(1)), []
    for t in range(x.size(1)):
        h = 0.5 * h + torch.tanh(m.first(x[:, t]) + h + mean)
        outputs.append(h)
    return torch.stack(outputs, 1)


@cache
def lowered(function: Callable[..., Any]) -> tuple[Looping, LoweredModel]:
    torch.manual_seed(0)
    model = Looping(function).eval()
    return model, lower(model, CONFIG)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("function", "states"),
    [
        (loops.every_state, 2),
        pytest.param(loops.exponential_gates, 4, marks=pytest.mark.long),
        pytest.param(loops.reset_by_an_input, 2, marks=pytest.mark.long),
        pytest.param(loops.own_layers, 2, marks=pytest.mark.long),
        pytest.param(loops.highway, 1, marks=pytest.mark.long),
        pytest.param(leaky, 1, marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_loop_is_cut_anywhere(function: Callable[..., Any], states: int) -> None:
    model, program = lowered(function)

    assert program.chunked is not None, program.chunking_reason
    assert [value.spec.name for value in program.chunked.carried] == [f"scan.state_{n}" for n in range(states)]
    requests = [[torch.randn(length, loops.FEATURES)] for length in LENGTHS]
    assert_chunks_equal_whole_sequences(model, program, requests, LENGTHS)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (from_the_end, "counts timesteps from the beginning or the end"),
        pytest.param(from_the_mean, "a loop needs the end of the sequence", marks=pytest.mark.long),
        (with_the_mean, "a loop needs the end of the sequence"),
        pytest.param(loops.zipped, "aten.narrow mixes timesteps", marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_loop_that_needs_later_timesteps_is_not_cut(function: Callable[..., Any], reason: str) -> None:
    _, program = lowered(function)

    assert program.chunked is None
    assert reason in program.chunking_reason


@pytest.mark.ci
def test_chunks_of_a_loop_are_run_only_where_they_are_needed() -> None:
    """A step takes about as long for fewer rows."""
    _, program = lowered(leaky)

    assert program.chunked is not None
    assert program.chunked.reason_for_whole is not None
    assert "a step of a loop takes about as long" in program.chunked.reason_for_whole
