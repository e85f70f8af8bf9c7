"""Comparison of calls in alternating rounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from torchserve_neuron_lstm.archiver_ext.evaluation.alternating import measure_alternating


class Machine:
    """Simulated seconds, which pass only during calls; at times, other work slows every call down."""

    def __init__(self, slowdown: Callable[[float], float] = lambda now: 1.0) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        self.slowdown = slowdown

    def clock(self) -> float:
        return self.now

    def costing(self, name: str, milliseconds: float) -> Callable[[], None]:
        def call() -> None:
            self.ran.append(name)
            self.now += milliseconds * self.slowdown(self.now) / 1000

        return call


def test_every_call_takes_its_turn_twice_in_a_row_and_in_both_orders() -> None:
    """No call always follows the same other one."""
    machine = Machine()
    calls = {name: machine.costing(name, 30) for name in "abc"}

    assert measure_alternating(calls, clock=machine.clock).milliseconds.keys() == calls.keys()
    assert "".join(machine.ran) == "aabbccccbbaa"


def test_a_machine_that_is_busy_for_a_while_does_not_decide() -> None:
    """Work that begins or ends during the measurement leaves the order of the engines as it is."""
    for begin, end in ((0.0, 0.3), (0.1, 0.6), (0.25, 99.0)):
        machine = Machine(lambda now, begin=begin, end=end: 5.0 if begin <= now < end else 1.0)  # type: ignore[misc]
        compared = measure_alternating(
            {"slow": machine.costing("slow", 12), "fast": machine.costing("fast", 10)}, clock=machine.clock
        )
        assert compared.milliseconds["fast"] < compared.milliseconds["slow"]


def test_rounds_go_on_until_the_shortest_time_is_not_by_chance() -> None:
    """Calls that are disturbed at random are repeated until two of their times agree, up to the limit."""
    disturbed = random.Random(1)
    machine = Machine(lambda _: 1.0 if disturbed.random() < 0.2 else 2 + disturbed.random() * 5)
    compared = measure_alternating({"a": machine.costing("a", 10)}, clock=machine.clock)
    assert round(compared.milliseconds["a"], 6) == 10
    assert compared.undisturbed

    never = Machine(lambda now: 1 + 3 * now)
    compared = measure_alternating({"a": never.costing("a", 100)}, limit_ms=500, clock=never.clock)
    assert never.now < 2
    assert not compared.undisturbed


def test_a_short_call_that_varies_does_not_prolong_the_measurement() -> None:
    """It decides nothing: the sums of the calls do."""
    machine = Machine()
    chance = random.Random(2)

    def short() -> None:
        machine.now += chance.uniform(1, 30) / 1e6

    compared = measure_alternating(
        {"long": machine.costing("long", 50), "short": short}, budget_ms=0.001, clock=machine.clock
    )

    assert compared.undisturbed
    assert len(machine.ran) == 2 * 2


def test_a_program_that_takes_one_of_two_times_does_not_make_a_quiet_machine_look_busy() -> None:
    """A small share of the time does not decide; with a larger one, the comparison counts as disturbed."""
    for share, is_undisturbed in ((8, True), (40, False)):
        machine = Machine()
        runs = iter(range(1000))

        def two_times(machine: Machine = machine, share: int = share, runs: Iterator[int] = runs) -> None:
            machine.now += (share if next(runs) < 2 else 1.7 * share) / 1000

        calls = {"one": machine.costing("one", 100 - share), "other": two_times}
        assert measure_alternating(calls, clock=machine.clock).undisturbed == is_undisturbed
