"""Measurement of costs: interleaved, within a time budget, repeated where it is doubtful."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from busy_machine import BusyMachine

from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.handlers.runtime.cost_samples import CostKey, Slice, cost_ms, doubts
from torchserve_neuron_lstm.handlers.runtime.measurement import Effort, Meters, measure

A, B = CostKey("sequence", Bucket(1, 16)), CostKey("sequence", Bucket(8, 16))
MS = {A: 0.5, B: 2.0}


def measured(machine: BusyMachine) -> dict[CostKey, list[Slice]]:
    """Two calls of two threads on the machine."""
    return measure({key: machine.costing(str(key), ms) for key, ms in MS.items()}, Effort(), machine.meters)


def costs(slices: dict[CostKey, list[Slice]]) -> dict[CostKey, float]:
    """The costs that the slices show."""
    return {key: round(cost_ms(own), 6) for key, own in slices.items()}


def test_the_quickest_run_counts_after_warming_up() -> None:
    """Warm-up calls, and calls slowed down by other load, do not count."""
    machine = BusyMachine()
    slices = measure({A: machine.costing("a", 1, 90, 2, 3, 40)}, Effort(budget_ms=100), machine.meters)

    assert cost_ms(slices[A]) == pytest.approx(2)


def test_the_calls_take_turns() -> None:
    """A slow moment of the machine affects all calls."""
    machine = BusyMachine()
    calls = {A: machine.costing("a", 1), B: machine.costing("b", 1)}
    measure(calls, Effort(budget_ms=4, slice_ms=2), machine.meters)

    assert "".join(machine.ran) == "aaabbb" + "aabb" * 2  # the first call of each is not timed


def test_a_slow_call_is_measured_three_times_and_a_fast_one_within_the_budget() -> None:
    """The total time is limited for both."""
    machine = BusyMachine()
    calls = {B: machine.costing("slow", 1000), A: machine.costing("fast", 0.5)}
    measure(calls, Effort(budget_ms=60), machine.meters)

    assert machine.ran.count("slow") == 1 + 3
    assert 1 + 119 <= machine.ran.count("fast") <= 1 + 123


def test_a_quiet_machine_is_believed_at_once() -> None:
    """Nothing is repeated, and nothing is doubtful."""
    machine = BusyMachine()
    slices = measured(machine)

    assert costs(slices) == MS
    assert doubts(slices) == ()
    assert 1000 * machine.now < 2 * 30 + 2 * 3 * sum(MS.values())


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param(lambda now: 1 if now < 0.05 else 0, id="at first"),
        pytest.param(lambda now: 1 if now > 0.03 else 0, id="midway, for good"),
        pytest.param(lambda now: 2 if int(now * 50) % 3 else 0, id="in bursts"),
    ],
)
def test_other_work_for_a_while_is_waited_out(taken: Callable[[float], int]) -> None:
    """Calls are repeated until they had their cores, and their costs are those of a quiet machine."""
    slices = measured(BusyMachine(taken=taken))

    assert costs(slices) == MS
    assert doubts(slices) == ()


def test_work_that_does_not_end_is_told_and_bounded() -> None:
    """The repetitions take twice the time of the measurement at most."""
    machine = BusyMachine(taken=lambda now: 1)
    slices = measured(machine)

    (doubt,) = doubts(slices)
    assert doubt.startswith(
        "2 of 2 costs were measured while threads waited for cores (all threads together 100% of the time of"
    )
    assert machine.now < 3 * (0.03 * 2 + 4 * 20 * sum(MS.values()) / 1000)


def test_a_call_of_one_thread_is_not_disturbed_by_work_on_another_core() -> None:
    """One core is enough for it."""
    machine = BusyMachine(taken=lambda now: 1)
    slices = measure({A: machine.costing("a", 0.5, threads=1)}, Effort(), machine.meters)

    assert cost_ms(slices[A]) == pytest.approx(0.5)
    assert doubts(slices) == ()


def test_costs_that_contradict_each_other_are_measured_again() -> None:
    """The machine was slow for one of them without other work that would show, such as a clock rate."""
    machine = BusyMachine()
    slow = [5.0] * 10
    calls = {A: machine.costing("a", *slow, 0.5), B: machine.costing("b", 2.0)}
    slices = measure(calls, Effort(), machine.meters)

    assert costs(slices) == MS
    assert doubts(slices) == ()


def test_a_contradiction_that_stays_is_told() -> None:
    """One row takes longer than eight of the same length, however often they are measured."""
    machine = BusyMachine()
    slices = measure({A: machine.costing("a", 3.0), B: machine.costing("b", 2.0)}, Effort(), machine.meters)

    assert doubts(slices) == ("sequence 1 x 16 took 3.000 ms, more than 8 x 16 with 2.000 ms",)
    assert machine.now < 0.3


def test_nothing_begins_after_the_limit() -> None:
    """A key that the limit came before has no slice."""
    machine = BusyMachine()
    slices = measure(
        {A: machine.costing("a", 50.0), B: machine.costing("b", 50.0)}, Effort(limit_ms=80), machine.meters
    )

    assert (len(slices[A]), slices[B]) == (1, [])
    assert machine.now == pytest.approx(0.1)


def test_a_thread_that_ends_takes_its_waiting_with_it() -> None:
    """The sum over the threads that are left is smaller then; no slice has waited less than nothing."""
    machine, readings = BusyMachine(), iter([500.0] + [0.0] * 1000)
    slices = measure({A: machine.costing("a", 1.0)}, Effort(), Meters(lambda: machine.now, lambda: next(readings)))

    assert min(one.waited_ms for one in slices[A]) == 0
    assert doubts(slices) == ()
