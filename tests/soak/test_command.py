"""The command: what a whole run is judged by."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest
from soak.__main__ import _minutes, standings
from soak.client import KINDS
from soak.load import Observed
from soak.readings import Reading
from soak.standing import missed
from soak.tally import Tally

SECONDS = 120.0
BEFORE = {"tagger 1": 10, "stream 1": 11}


def observed(grows: str = "", growth: float = 0.5) -> Observed:
    """A run without a failure, in which one process grows by a half."""
    counts = Counter(dict.fromkeys(KINDS, 2))
    good = 9 * counts.total()
    tally = Tally(good, good, counts, counts, sessions_begun=3, sessions_finished=3)
    readings = {
        name: [Reading(at, 1e8 * (1 + growth * at / SECONDS * (name == grows)), 9, 4) for at in range(120)]
        for name in (*BEFORE, "java")
    }
    return Observed(tally, readings, SECONDS)


def test_a_run_without_a_failure_holds() -> None:
    """The shares and counts are as they are meant."""
    assert missed(standings(observed(), BEFORE, BEFORE, SECONDS)) == []


@pytest.mark.parametrize(("grows", "lines"), [("tagger 1", 1), ("stream 1", 1), ("java", 0)])
def test_the_memory_of_each_worker_is_judged_and_that_of_the_server_is_not(grows: str, lines: int) -> None:
    """The line names the worker."""
    found = missed(standings(observed(grows), BEFORE, BEFORE, SECONDS))

    assert [grows in line for line in found] == [True] * lines


def test_a_worker_that_was_replaced_does_not_hold() -> None:
    """Its readings may look alike."""
    (line,) = missed(standings(observed(), BEFORE, {**BEFORE, "stream 1": 12}, SECONDS))

    assert line == "missed: workers that were replaced: 1.00, at most 0.00"


def test_one_wrong_answer_does_not_hold() -> None:
    """All else is right."""
    run = observed()
    run.tally.good_right -= 1

    assert len(missed(standings(run, BEFORE, BEFORE, SECONDS))) == 1


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf"])
def test_minutes_are_above_zero(text: str) -> None:
    """The message shows an example."""
    with pytest.raises(argparse.ArgumentTypeError, match="such as 30"):
        _minutes(text)
