"""The judgement of readings: leaks are found, noise is not taken for one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak.readings import Reading
from soak.standing import missed
from soak.steadiness import LEAST_READINGS, ends, process_standings, warm_up_seconds

FULL = 1800.0
"""Seconds of a full run."""
MB = 1e6
SEEDS = st.integers(0, 2**32)


def series(
    memory: Callable[[float], float] = lambda _: 200 * MB,
    descriptors: Callable[[float], int] = lambda _: 20,
    threads: Callable[[float], int] = lambda _: 5,
    seconds: float = FULL,
) -> list[Reading]:
    """A reading every second, or 300 in a shorter run."""
    interval = min(1.0, seconds / 300)
    times = [number * interval for number in range(int(seconds / interval))]
    return [Reading(at, memory(at), descriptors(at), threads(at)) for at in times]


def found(readings: list[Reading], seconds: float = FULL) -> list[str]:
    """The lines of what does not hold."""
    return missed(process_standings("worker", readings, seconds))


def noise(seed: int, percent: float, spikes: float) -> Callable[[], float]:
    """Random factors: some percent in both directions, and a share of spikes of up to a half."""
    chance = random.Random(seed)

    def factor() -> float:
        high = 1 + chance.random() / 2 if chance.random() < spikes else 1.0
        return high * (1 + chance.uniform(-percent, percent) / 100)

    return factor


@given(seed=SEEDS, percent=st.floats(0, 1), spikes=st.floats(0, 0.2), start=st.floats(50, 5000))
def test_noise_is_no_leak(seed: int, percent: float, spikes: float, start: float) -> None:
    """Neither noise of 1 %, nor spikes in every fifth reading."""
    factor = noise(seed, percent, spikes)

    assert found(series(lambda _: start * MB * factor())) == []


@given(seed=SEEDS, leak=st.floats(0.1, 10), percent=st.floats(0, 0.3), start=st.floats(50, 5000))
def test_a_leak_of_a_thousandth_a_minute_is_found(seed: int, leak: float, percent: float, start: float) -> None:
    """This holds under noise of three times as much, where a real worker shows a tenth of it."""
    factor = noise(seed, percent, 0.0)
    (line,) = found(series(lambda at: start * MB * (1 + leak / 100 * at / 60) * factor()))

    assert line.startswith("missed: worker: growth of memory, percent: ")


@given(seed=SEEDS, leak=st.floats(0.1, 10), spikes=st.floats(0, 0.1))
def test_spikes_at_the_begin_hide_no_leak(seed: int, leak: float, spikes: float) -> None:
    """They are in the first window only, and make it look larger."""
    early, calm = noise(seed, 0.2, spikes), noise(seed + 1, 0.2, 0.0)

    def memory(at: float) -> float:
        factor = early if at < warm_up_seconds(FULL) + 150 else calm
        return 200 * MB * (1 + leak / 100 * at / 60) * factor()

    assert len(found(series(memory))) == 1


@given(seed=SEEDS, percent=st.floats(2.6, 50), at=st.floats(301, 1600))
def test_a_step_is_found_wherever_it_is(seed: int, percent: float, at: float) -> None:
    """One that comes after the first window, or in its first half."""
    factor = noise(seed, 0.2, 0.0)
    readings = series(lambda now: 200 * MB * (1 + percent / 100 * (now >= max(at, 451))) * factor())

    assert len(found(readings)) == 1


def test_growth_within_the_warm_up_is_not_judged() -> None:
    """Memory doubles in the first five minutes."""
    assert found(series(lambda at: 200 * MB * (1 + min(at, 299) / 299))) == []


def test_memory_may_fall() -> None:
    """It is no leak if a worker gives memory back."""
    assert found(series(lambda at: 300 * MB - at * 0.05 * MB)) == []


def test_the_growth_that_is_allowed_is_two_percent() -> None:
    """A step by 1.99 % holds, one by 2.01 % does not."""
    assert found(series(lambda at: 200 * MB * (1.0199 if at > 1000 else 1))) == []
    assert len(found(series(lambda at: 200 * MB * (1.0201 if at > 1000 else 1)))) == 1


@pytest.mark.parametrize(("change", "lines"), [(1, 0), (2, 1), (-1, 0), (-2, 1)])
def test_descriptors_stay_within_one(change: int, lines: int) -> None:
    """In both directions; those of a moment do not count."""
    steps = series(descriptors=lambda at: 20 + (change if at > 900 else 0) + 30 * (int(at) % 5 == 0))

    assert len(found(steps)) == lines


@pytest.mark.parametrize(("change", "lines"), [(1, 0), (2, 1), (-1, 0), (-2, 1)])
def test_threads_stay_within_one(change: int, lines: int) -> None:
    """In both directions."""
    assert len(found(series(threads=lambda at: 6 + (change if at > 900 else 0)))) == lines


@given(end=st.floats(0, FULL - 160))
def test_a_process_that_ended_does_not_hold(end: float) -> None:
    """There is nothing to compare with, so each of the three is missed."""
    readings = [one for one in series() if one.seconds < end]

    assert len(found(readings)) == 3


@pytest.mark.parametrize("count", range(LEAST_READINGS + 1))
def test_a_window_needs_enough_readings(count: int) -> None:
    """One fewer, and the end is not a number."""
    readings = [Reading(1700.0 + number, 1.0, 1, 1) for number in range(count)]

    assert math.isnan(ends(readings, FULL, lambda one: one.resident).last) is (count < LEAST_READINGS)


@given(seconds=st.floats(6, 20_000))
def test_every_run_is_judged_in_its_second_half_or_longer(seconds: float) -> None:
    """The warm-up is never longer than five minutes."""
    assert 0 < warm_up_seconds(seconds) <= min(300, seconds / 2)


@given(seconds=st.floats(15, 20_000))
def test_a_leak_of_a_tenth_is_found_in_a_run_of_any_length(seconds: float) -> None:
    """It begins after the warm-up."""
    readings = series(lambda at: MB * (1 + at / seconds / 10), seconds=seconds)

    assert len(found(readings, seconds)) == 1


def test_the_first_checkpoint_of_a_short_run_is_not_judged() -> None:
    """A thread with two files, which a busy machine starts after a minute and a half of five."""
    steps = series(descriptors=lambda at: 9 + 2 * (at > 90), threads=lambda at: 4 + (at > 90), seconds=300)

    assert found(steps, 300) == []
