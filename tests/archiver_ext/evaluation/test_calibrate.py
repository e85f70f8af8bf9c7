"""Measurement of costs: the median, interleaved, within a time budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fake_model import GRID, make_manifest

from torchserve_neuron_lstm.archiver_ext.evaluation.calibrate import buckets_to_measure, measure
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid
from torchserve_neuron_lstm.config.manifest import Variant


class Clock:
    """Simulated seconds, which pass only during calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    def costing(self, name: str, *milliseconds: float) -> Callable[[], None]:
        """A call that takes each of the times in turn, and then the last one."""
        left = list(milliseconds)

        def call() -> None:
            self.ran.append(name)
            self.now += (left.pop(0) if len(left) > 1 else left[0]) / 1000

        return call


def test_the_quickest_run_counts_after_warming_up() -> None:
    """Warm-up calls, and calls slowed down by other load, do not count."""
    clock = Clock()
    measured = measure({"a": clock.costing("a", 1, 90, 2, 3, 40)}, budget_ms=100, clock=clock)

    assert round(measured["a"], 6) == 2


def test_the_calls_take_turns() -> None:
    """A slow moment of the machine affects all calls."""
    clock = Clock()
    measure({"a": clock.costing("a", 1), "b": clock.costing("b", 1)}, budget_ms=4, clock=clock)

    assert "".join(clock.ran[2:]) == "abababab"


def test_a_slow_call_is_measured_three_times_and_a_fast_one_within_the_budget() -> None:
    """The total time is limited for both."""
    clock = Clock()
    measure({"slow": clock.costing("slow", 1000), "fast": clock.costing("fast", 0.5)}, budget_ms=60, clock=clock)

    assert clock.ran.count("slow") == 1 + 3
    assert 1 + 119 <= clock.ran.count("fast") <= 1 + 122


def test_programs_of_fixed_shapes_are_measured_in_each() -> None:
    """Chunks are measured in every bucket, start and head programs for every batch size."""
    manifest = make_manifest()

    assert buckets_to_measure("sequence", manifest) == GRID.buckets
    assert buckets_to_measure("chunk", manifest) == GRID.buckets
    assert buckets_to_measure("start", manifest) == buckets_to_measure("head", manifest) == (Bucket(1, 1), Bucket(4, 1))


def test_programs_for_any_shape_are_measured_where_it_tells_most() -> None:
    """Row counts up to the largest, and for chunks a few and many timesteps, none beyond the longest."""
    variants = (Variant("sequence", None, "programs/any"),)
    manifest = make_manifest(shapes="any", variants=variants, grid=BucketGrid((2, 10), (50, 200)), longest=200)

    many = buckets_to_measure("chunk", manifest)
    few = buckets_to_measure("chunk", replace(manifest, longest=3))
    whole = buckets_to_measure("sequence", manifest)

    assert sorted({batch for batch, _ in many}) == [1, 2, 3, 4, 6, 8, 10]
    assert len({length for _, length in many}) == 2
    assert {length for _, length in few} == {3}
    assert {length for _, length in whole} == {50, 200}
