"""Interleaved timing: all calls pause, warm up, and go first in turn."""

from __future__ import annotations

from collections.abc import Callable

from torchserve_neuron_lstm.archiver_ext.commands.bench_archive import time_interleaved


class Day:
    """Simulated seconds that pass during calls and pauses, with a record of the events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = ""

    def __call__(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        self.happened += "."
        self.now += seconds

    def costing(self, name: str, *seconds: float) -> Callable[[], None]:
        left = list(seconds)

        def call() -> None:
            self.happened += name
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_the_first_call_of_a_turn_is_not_counted_and_a_slow_moment_hardly() -> None:
    """The result is the median of the turn, without the call that wakes the threads and the pauses."""
    day = Day()
    seconds = time_interleaved({"a": day.costing("a", 99, 2, 50, 2, 2, 2)}, 1, 57, day, day.rest)

    assert seconds == {"a": (2,)}


def test_every_round_begins_with_another_one() -> None:
    day = Day()
    calls = {name: day.costing(name, 1) for name in "abc"}
    seconds = time_interleaved(calls, 4, 1, day, day.rest)

    assert day.happened == ".aa.bb.cc.bb.cc.aa.cc.aa.bb.aa.bb.cc"
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_slow_call_is_timed_once_a_turn_and_a_fast_one_for_the_whole_of_it() -> None:
    day = Day()
    time_interleaved({"s": day.costing("s", 8), "f": day.costing("f", 0.5)}, 1, 2, day, day.rest)

    assert day.happened == ".ss.fffff"
