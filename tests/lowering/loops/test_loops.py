"""Loops over timesteps: recognised in an unrolled trace, and exact at every length."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from input_configs import config_of
from ragged import lower_exact
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.errors import UnknownLoop

from .loop_models import CELLS, FURTHER_LOOPS, HIDDEN, LOOPS, MORE_CELLS, MORE_LOOPS, Looping, cells_in_turn, zeros
from .published_loops import RowsThatEnd, StartsFromInputs, gate_unread_at_the_end, solver_steps

X = "x: {dtype: float32, shape: [batch, time, 5]}"
CONFIG = config_of(f"{{{X}}}")
BATCHES = ([16, 1, 9, 4], [1], [5, 5], [2, 16])


@pytest.mark.parametrize(
    "function",
    [
        *LOOPS,
        *(pytest.param(function, marks=pytest.mark.ci) for function in MORE_LOOPS),
        *(pytest.param(function, marks=pytest.mark.long) for function in FURTHER_LOOPS),
    ],
    ids=lambda f: f.__name__,
)
def test_a_loop_is_served_at_every_length_as_each_request_alone(function: Callable[..., Any]) -> None:
    lower_exact(Looping(function), CONFIG, BATCHES)


@pytest.mark.ci
@pytest.mark.parametrize(
    "function",
    [
        *CELLS,
        *(
            pytest.param(function, marks=pytest.mark.long)
            for function in (*MORE_CELLS, solver_steps, gate_unread_at_the_end)
        ),
    ],
    ids=lambda f: f.__name__,
)
def test_a_published_cell_is_exact_at_every_length(function: Callable[..., Any]) -> None:
    """Six timesteps are enough to recognise the loop."""
    check_alone(Looping(function), f"{{{X}}}")


@pytest.mark.ci
def test_the_first_states_of_a_cell_of_its_own_may_be_inputs() -> None:
    states = ", ".join(f"{name}: {{dtype: float32, shape: [batch, {HIDDEN}]}}" for name in "hc")
    check_alone(StartsFromInputs(), f"{{{X}, {states}}}")


@pytest.mark.ci
def test_a_cell_over_packed_data_is_exact_at_every_length() -> None:
    """The parts of one request have one row each."""
    check_alone(RowsThatEnd(), f"{{{X}}}", "lengths: lengths")


def check_alone(model: nn.Module, inputs: str, more: str = "") -> None:
    lower_exact(model, config_of(inputs, more, length="[4, 6]"), ([6, 1, 3, 4, 2, 5],), garbage=(1e30, float("nan")))


@pytest.mark.ci
def test_a_cell_becomes_one_recurrence() -> None:
    program = lower_exact(Looping(cells_in_turn), CONFIG, BATCHES)

    calls = [str(node.target) for node in program.exported.graph.nodes if "neuron_lstm" in str(node.target)]
    assert calls == ["neuron_lstm.lstm.default", "neuron_lstm.rnn.default"]
    lower_exact(Looping(cells_in_turn), config_of(f"{{{X}}}", length="[2]"), ([2, 1],))


def every_second_timestep(m: Looping, x: Tensor) -> Any:
    state, twice = zeros(x), torch.cat([x, torch.tanh(x)], 1)
    for t in range(x.size(1)):
        state = m.cell(twice[:, 2 * t], state)
    return state[0]


def number_of_the_timestep(m: Looping, x: Tensor) -> Any:
    state, outputs = zeros(x), []
    for t in range(x.size(1)):
        state = m.cell(x[:, t], state)
        outputs.append(state[0] * t)
    return torch.stack(outputs, 1)


def buffer_from_its_end(m: Looping, x: Tensor) -> Any:
    state, buffer = zeros(x), x.new_zeros(x.size(0), x.size(1), HIDDEN)
    for t in range(x.size(1)):
        state = m.cell(x[:, t], state)
        buffer[:, -1 - t] = state[0]
    return buffer


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (every_second_timestep, "a loop does not read every timestep .at test_loops.py"),
        (number_of_the_timestep, "a loop computes with the index of the timestep .at test_loops.py"),
        (buffer_from_its_end, "a buffer is not written timestep by timestep .at test_loops.py"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_another_loop_is_refused_with_its_line(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UnknownLoop, match=reason):
        lower(Looping(function), CONFIG)
