"""Measuring: the median, fairly interleaved, within its budget."""

from __future__ import annotations

from collections.abc import Callable

from torchserve_neuron_lstm.archiver_ext.engines.calibrate import measure


class Clock:
    """Seconds that pass only while something runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    def costing(self, name: str, *milliseconds: float) -> Callable[[], None]:
        """A call that takes each time in turn, the last one for ever."""
        left = list(milliseconds)

        def call() -> None:
            self.ran.append(name)
            self.now += (left.pop(0) if len(left) > 1 else left[0]) / 1000

        return call


def test_the_quickest_run_counts_after_warming_up() -> None:
    """Neither a warm-up nor what other work on the machine made slow."""
    clock = Clock()
    measured = measure({"a": clock.costing("a", 1, 1, 90, 2, 3, 40)}, budget_ms=100, clock=clock)

    assert round(measured["a"], 6) == 2


def test_the_calls_take_turns() -> None:
    """A slow moment of the machine falls on all."""
    clock = Clock()
    measure({"a": clock.costing("a", 1), "b": clock.costing("b", 1)}, budget_ms=4, clock=clock)

    assert "".join(clock.ran[4:]) == "abababab"


def test_a_slow_call_is_measured_three_times_and_a_fast_one_within_the_budget() -> None:
    """The time taken stays within reason for both."""
    clock = Clock()
    measure({"slow": clock.costing("slow", 1000), "fast": clock.costing("fast", 0.5)}, budget_ms=60, clock=clock)

    assert clock.ran.count("slow") == 2 + 3
    assert 2 + 119 <= clock.ran.count("fast") <= 2 + 122
