from collections.abc import Callable

import pytest
from simulated_machine import Machine

from torchserve_neuron_lstm.handlers.runtime.measurement import Effort, measure, spread

MS = {"a": 0.5, "b": 2.0}
SYNCHRONIZING = 20.0
"""Ratio of a call's time while one of its threads has no core: the others wait for it at every step."""


def measured(machine: Machine) -> dict[str, tuple[float, ...]]:
    return measure({name: machine.costing(name, ms) for name, ms in MS.items()}, clock=machine)


def shortest(turns: dict[str, tuple[float, ...]]) -> dict[str, float]:
    return {name: round(min(times), 6) for name, times in turns.items()}


def test_the_first_call_and_slow_calls_do_not_count() -> None:
    machine = Machine()
    turns = measure({"a": machine.costing("a", 1, 90, 2, 3, 40)}, Effort(budget_ms=100), machine)

    assert min(turns["a"]) == pytest.approx(2)


def test_the_calls_take_turns() -> None:
    """A slow moment of the machine affects all calls."""
    machine = Machine()
    calls = {name: machine.costing(name, 1) for name in "ab"}
    measure(calls, Effort(budget_ms=4, turn_ms=2), machine)

    assert "".join(machine.ran) == "aaabbb" + "bbaa" + "aabb"  # the first call of each is not timed


def test_a_slow_call_is_measured_three_times_and_a_fast_one_within_the_budget() -> None:
    machine = Machine()
    measure({"s": machine.costing("s", 1000), "f": machine.costing("f", 0.5)}, Effort(budget_ms=60), machine)

    assert machine.ran.count("s") == 1 + 3
    assert 1 + 119 <= machine.ran.count("f") <= 1 + 123


def test_a_quiet_machine_is_believed_at_once() -> None:
    machine = Machine()
    turns = measured(machine)

    assert shortest(turns) == MS
    assert spread(turns) == pytest.approx(1)
    assert 1000 * machine.now < 2 * 30 + 2 * 3 * sum(MS.values())


@pytest.mark.parametrize(
    "is_busy",
    [
        pytest.param(lambda now: now < 0.05, id="at first"),
        pytest.param(lambda now: now > 0.03, id="midway, for good"),
        pytest.param(lambda now: bool(int(now * 50) % 3), id="in bursts"),
    ],
)
def test_other_work_for_a_while_is_waited_out(is_busy: Callable[[float], bool]) -> None:
    assert shortest(measured(Machine(lambda _, now: SYNCHRONIZING if is_busy(now) else 1.0))) == MS


def test_rounds_of_calls_that_never_agree_are_bounded_and_their_spread_is_told() -> None:
    machine = Machine()
    growing = [2.0**power for power in range(12)]
    turns = measure({"a": machine.costing("a", 1.0, *reversed(growing))}, Effort(turn_ms=0.5, budget_ms=1), machine)

    assert spread(turns) > 1.25
    assert 1000 * machine.now < 1 + 4 * (2048 + 1024 + 512)
