"""Comparison of calls in alternating rounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from torchserve_neuron_lstm.archiver_ext.evaluation.alternating import measure_alternating
from torchserve_neuron_lstm.handlers.runtime.measurement import Meters


class Machine:
    """Simulated seconds, which pass only during calls; at times, other work slows every call down."""

    def __init__(self, slowdown: Callable[[float], float] = lambda now: 1.0) -> None:
        self.now = 0.0
        self.waited_ms = 0.0
        self.ran: list[str] = []
        self.slowdown = slowdown

    @property
    def meters(self) -> Meters:
        return Meters(lambda: self.now, lambda: self.waited_ms)

    def costing(self, name: str, milliseconds: float) -> Callable[[], None]:
        def call() -> None:
            self.ran.append(name)
            self.now += milliseconds * self.slowdown(self.now) / 1000

        return call

    def costing_two_threads(self, name: str, milliseconds: float, busy_until: float) -> Callable[[], None]:
        """A call of two threads, of which one waits for a core until other work ends, each time as long."""

        def call() -> None:
            waits = self.now < busy_until
            self.waited_ms += 9 * milliseconds if waits else 0.0
            self.costing(name, 10 * milliseconds if waits else milliseconds)()

        return call


def test_every_call_takes_its_turn_twice_in_a_row_and_in_both_orders() -> None:
    """No call always follows the same other one."""
    machine = Machine()
    calls = {name: machine.costing(name, 30) for name in "abc"}

    assert measure_alternating(calls, meters=machine.meters).milliseconds.keys() == calls.keys()
    assert "".join(machine.ran) == "aabbccccbbaa"


def test_a_machine_that_is_busy_for_a_while_does_not_decide() -> None:
    """Work that begins or ends during the measurement leaves the order of the engines as it is."""
    for begin, end in ((0.0, 0.3), (0.1, 0.6), (0.25, 99.0)):
        machine = Machine(lambda now, begin=begin, end=end: 5.0 if begin <= now < end else 1.0)  # type: ignore[misc]  # a lambda has no types
        compared = measure_alternating(
            {"slow": machine.costing("slow", 12), "fast": machine.costing("fast", 10)}, meters=machine.meters
        )
        assert compared.milliseconds["fast"] < compared.milliseconds["slow"]


def test_rounds_go_on_until_the_shortest_time_is_not_by_chance() -> None:
    """Calls that are disturbed at random are repeated until two of their times agree, up to the limit."""
    disturbed = random.Random(1)
    machine = Machine(lambda _: 1.0 if disturbed.random() < 0.2 else 2 + disturbed.random() * 5)
    compared = measure_alternating({"a": machine.costing("a", 10)}, meters=machine.meters)
    assert round(compared.milliseconds["a"], 6) == 10
    assert compared.undisturbed

    never = Machine(lambda now: 1 + 3 * now)
    compared = measure_alternating({"a": never.costing("a", 100)}, limit_ms=500, meters=never.meters)
    assert never.now < 2
    assert not compared.undisturbed


def test_an_engine_whose_threads_wait_for_cores_has_not_lost() -> None:
    """It takes ten times as long in each round, which agree; rounds go on until it has its cores."""
    machine = Machine()
    calls = {"two": machine.costing_two_threads("two", 10, busy_until=1.0), "one": machine.costing("one", 12)}
    compared = measure_alternating(calls, meters=machine.meters)

    assert {name: round(ms, 6) for name, ms in compared.milliseconds.items()} == {"two": 10, "one": 12}
    assert compared.undisturbed


def test_an_engine_that_never_has_its_cores_leaves_the_comparison_disturbed() -> None:
    """The measurement ends at its limit, and says that other work may have decided."""
    machine = Machine()
    calls = {"two": machine.costing_two_threads("two", 10, busy_until=99.0), "one": machine.costing("one", 12)}
    compared = measure_alternating(calls, limit_ms=500, meters=machine.meters)

    assert machine.now < 1
    assert not compared.undisturbed


def test_a_short_call_that_waits_does_not_prolong_the_measurement() -> None:
    """Threads of the call before may still use the cores when a short one begins."""
    machine = Machine()
    calls = {"long": machine.costing("long", 50), "short": machine.costing_two_threads("short", 0.01, busy_until=99.0)}
    compared = measure_alternating(calls, budget_ms=0.001, meters=machine.meters)

    assert compared.undisturbed
    assert machine.ran.count("long") == 2 * 2


def test_a_short_call_that_varies_does_not_prolong_the_measurement() -> None:
    """It decides nothing: the sums of the calls do."""
    machine = Machine()
    chance = random.Random(2)

    def short() -> None:
        machine.now += chance.uniform(1, 30) / 1e6

    compared = measure_alternating(
        {"long": machine.costing("long", 50), "short": short}, budget_ms=0.001, meters=machine.meters
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
        assert measure_alternating(calls, meters=machine.meters).undisturbed == is_undisturbed
