"""Loops that do something else at some step or length: seen in the code that runs, at every length that is served."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from input_configs import one_input
from torch import Tensor, nn

from torchserve_neuron_lstm.lowering import LoweringError, lower
from torchserve_neuron_lstm.lowering.chunks.streaming import check_streamable
from torchserve_neuron_lstm.lowering.loops.each_length import LoopCalls

SHAPE = "[batch, time, 3]"
LONG = one_input(SHAPE, length="[7, 64]")
FAR = 1888
SESSIONS = one_input(SHAPE, "streaming: {}", length="[4, 16]")


class Cells(nn.Module):
    every = 40

    def __init__(self, run: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.mix = nn.GRUCell(3, 4), nn.Linear(4, 4)
        self.run = [run]

    def forward(self, x: Tensor) -> Any:
        return self.run[0](self, x)


def states(m: Cells, x: Tensor, change: Callable[[int, Tensor, list[Tensor]], Tensor]) -> list[Tensor]:
    """The states of all steps; `change` is called with the number of a step and the state before it."""
    h, found = x.new_zeros(x.size(0), 4), list[Tensor]()
    for t in range(x.size(1)):
        h = m.cell(x[:, t], change(t, h, found))
        found.append(h)
    return found


def reset(m: Cells, x: Tensor) -> Any:
    return torch.stack(states(m, x, lambda t, h, _: h * 0 if t and t % m.every == 0 else h), 1)


def first_state_again(m: Cells, x: Tensor) -> Any:
    first = x.new_zeros(x.size(0), 4)
    return torch.stack(states(m, x, lambda t, h, _: first if t in (0, 30) else h), 1)


def counted_by_results(m: Cells, x: Tensor) -> Any:
    return torch.stack(states(m, x, lambda _, h, before: -h if len(before) == 50 else h), 1)


def branch_on_timesteps(m: Cells, x: Tensor) -> Any:
    y = torch.stack(states(m, x, lambda _, h, __: h), 1)
    return y.clamp(-30, 30) if x.size(1) == 24 or 26 <= x.size(1) <= 30 else y


def last_ones(m: Cells, x: Tensor) -> Any:
    h = x.new_zeros(x.size(0), 4)
    for t in range(max(0, x.size(1) - 20), x.size(1)):
        h = m.cell(x[:, t], h)
    return h


def stops_early(m: Cells, x: Tensor) -> Any:
    h = x.new_zeros(x.size(0), 4)
    for t in range(x.size(1)):
        if t == 45:
            break
        h = m.cell(x[:, t], h)
    return h


def one_step_again(m: Cells, x: Tensor) -> Any:
    h, found = x.new_zeros(x.size(0), 4), []
    for t in range(x.size(1)):
        h = m.cell(x[:, min(t, 35)], h)
        found.append(h)
    return torch.stack(found, 1)


def more_inner_steps(m: Cells, x: Tensor) -> Any:
    def change(t: int, h: Tensor, _: object) -> Tensor:
        for _ in range(1 + t // 40):
            h = m.mix(h)
        return h

    return torch.stack(states(m, x, change), 1)


CHANGING = [
    (reset, "h [*] 0"),
    (first_state_again, "m.cell"),
    (lambda m, x: torch.stack(states(m, x, lambda t, h, before: before[t - 2] if t == 33 else h), 1), "m.cell"),
    (counted_by_results, "-h if len"),
    (lambda m, x: torch.stack(states(m, x, lambda t, h, _: h * (0.5 if t < 20 else 0.4)), 1), "0.5 if t < 20 else 0.4"),
    (branch_on_timesteps, "y.clamp"),
    (last_ones, "max.0, x.size"),
    (lambda m, x: torch.stack(states(m, x, lambda _, h, __: h)[-20:], 1).mean(1), "-20"),
    (stops_early, "m.cell"),
    (one_step_again, "min.t, 35"),
    (more_inner_steps, "m.mix"),
]
FAST = {reset, first_state_again, branch_on_timesteps}


@pytest.mark.parametrize(
    ("run", "line"),
    [case if case[0] in FAST else pytest.param(*case, marks=pytest.mark.ci) for case in CHANGING],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_loop_that_changes_beyond_its_traces_is_refused_with_its_line(run: Callable[..., Any], line: str) -> None:
    with pytest.raises(LoweringError, match=rf"does something else at \d+ timesteps than at 12 .at \S+:\d+: .*{line}"):
        lower(Cells(run).eval(), LONG)


def test_lengths_that_the_code_may_compute_are_run_first() -> None:
    """It may count its steps by `len(found)`, which no trace sees: in 2,000 timesteps not all lengths are run."""

    def run(m: Any, x: Tensor) -> Any:
        found = states(m, x, lambda _, h, __: h)
        is_other = len(found) in (1234, m.wide * m.high, m.named["at"], FAR) or len(found) % m.wide == 0
        return torch.stack([*found, *found] if is_other else found, 1)

    model = Cells(run).eval()
    model.wide, model.high, model.named = 601, 3, {"at": 1777}  # type: ignore[assignment]  # of any type
    found = LoopCalls(model, one_input(SHAPE, length="[7, 2000]"), (9, 12)).lengths(2000)

    assert {1234, 601 * 3, 1777, FAR, *range(601, 2000, 601), *range(13, 96), 2000} <= {*found}
    assert sum(found) < 50_000


@pytest.mark.few(1)
@pytest.mark.parametrize("run", [reset, counted_by_results, last_ones])
def test_a_loop_that_changes_beyond_the_buckets_has_no_sessions(run: Callable[..., Any]) -> None:
    program = lower(Cells(run).eval(), SESSIONS)

    assert program.bound is not None
    assert program.bound.line is not None
    with pytest.raises(LoweringError, match="streaming"):
        check_streamable(program)


def two_inner_steps(m: Cells, x: Tensor) -> Any:
    return torch.stack(states(m, x, lambda _, h, __: m.mix(m.mix(h))), 1)


def split_by_batch_sizes(m: Cells, x: Tensor) -> Any:
    h, found = x.new_zeros(x.size(0), 4), []
    for rows in x[0].split([1] * x.size(1)):
        h = m.cell(rows, h)
        found.append(h)
    return torch.stack(found, 1)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: torch.stack(states(m, x, lambda t, h, _: m.mix(h) if t == 0 else h), 1),
        split_by_batch_sizes,
        pytest.param(two_inner_steps, marks=pytest.mark.ci),
    ],
)
def test_a_loop_that_is_alike_at_every_later_step_is_lowered_for_sessions_too(run: Callable[..., Any]) -> None:
    model = Cells(run).eval()
    program = lower(model, SESSIONS)

    check_streamable(program)
    x = torch.randn(1, 16, 3)
    with torch.no_grad():
        torch.testing.assert_close(program.exported.module()(x, torch.tensor([16]))[0], model(x))


def test_a_model_that_fails_at_some_length_is_refused_with_that_line() -> None:
    def fails(m: Cells, x: Tensor) -> Any:
        if x.size(1) > 40:
            raise ValueError("too long")
        return torch.stack(states(m, x, lambda _, h, __: h), 1)

    with pytest.raises(LoweringError, match=r"41 timesteps than at 12 .at .*x.size.1. > 40"):
        lower(Cells(fails).eval(), LONG)


def by_its_digits(m: Cells, x: Tensor) -> Any:
    timesteps = x.size(1)
    y = torch.stack(states(m, x, lambda _, h, __: h), 1)
    return y * (2 if timesteps % 10 + timesteps // 10 % 10 + timesteps // 100 == 19 else 1)


def by_a_number_that_is_not_in_its_code(m: Cells, x: Tensor) -> Any:
    h = states(m, x, lambda _, h, __: h)[-1]
    return -h if x.size(1) == 5 * m.every or not x.size(1) - 201 else h


HUNDREDS = [100]


def by_a_cut(m: Cells, x: Tensor) -> Any:
    cut = x.size(1) // HUNDREDS[0] % 2
    return torch.stack(states(m, x, lambda _, h, __: h), 1)[:, cut]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("run", "length"),
    [
        (lambda m, x: states(m, x, lambda _, h, __: h)[-1] + x.size(1) // HUNDREDS[0] % 2, 100),
        (by_a_cut, 100),
        (by_its_digits, 199),
        (lambda m, x: states(m, x, lambda _, h, __: h * (1.0 if x.size(1) * 0.1 % 13 < 12.5 else 2.0))[-1], 125),
        (by_a_number_that_is_not_in_its_code, 200),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_condition_on_timesteps_is_checked_at_every_length_without_running_it(
    run: Callable[..., Any], length: int
) -> None:
    with pytest.raises(LoweringError, match=rf"does something else at {length} timesteps than at 12 .at \S+:\d+: "):
        lower(Cells(run).eval(), one_input(SHAPE, length="[7, 600]"))


def by_its_text(m: Cells, x: Tensor) -> Any:
    h = states(m, x, lambda _, h, __: h)[-1]
    return h * 2 if str(x.size(1)) == "63" else h


@pytest.mark.ci
def test_a_plain_number_of_the_timesteps_may_decide_a_branch_so_every_length_is_run() -> None:
    with pytest.raises(LoweringError, match=r"plain number of the number of timesteps .at .*str"):
        lower(Cells(by_its_text).eval(), one_input(SHAPE, length="[7, 700]"))
    with pytest.raises(LoweringError, match="something else at 63 timesteps than at 12"):
        lower(Cells(by_its_text).eval(), LONG)
    lower(Cells(by_its_text).eval(), one_input(SHAPE, length="[7, 62]"))


@pytest.mark.ci
def test_a_list_of_as_many_elements_as_timesteps_decides_no_branch() -> None:
    def both_ways(m: Cells, x: Tensor) -> Any:
        timesteps, h = x.size(1), x.new_zeros(x.size(0), 4)
        backwards = [h] * timesteps
        for t in range(timesteps):
            backwards[timesteps - 1 - t] = h = m.cell(x[:, timesteps - 1 - t], h)
        return torch.stack(backwards, 1)

    lower(Cells(both_ways).eval(), one_input(SHAPE, length="[7, 700]"))
