"""The criteria of right answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from soak.standing import missed
from soak.tally import SHOWN, Tally, answer_standings

KINDS = ("not JSON", "too long")
GOOD = Tally(
    good_sent=180,
    good_right=180,
    bad_sent=Counter({"not JSON": 10, "too long": 10}),
    bad_refused=Counter({"not JSON": 10, "too long": 10}),
    sessions_begun=5,
    sessions_finished=5,
)


def test_a_run_without_a_wrong_answer_holds() -> None:
    """A tenth of its requests is bad, and each kind was sent."""
    assert missed(answer_standings(GOOD, KINDS)) == []


@pytest.mark.parametrize(
    ("tally", "line"),
    [
        (replace(GOOD, good_right=179), "good requests without the right answer: 1.00, at most 0.00"),
        (replace(GOOD, sessions_finished=4), "sessions that were not answered to their end: 1.00, at most 0.00"),
        (replace(GOOD, sessions_begun=0, sessions_finished=0), "sessions: 0.00, at least 1.00"),
        (
            replace(GOOD, bad_refused=Counter({"not JSON": 10, "too long": 8})),
            "bad requests without their documented refusal: 2.00, at most 0.00",
        ),
        (
            replace(GOOD, bad_sent=Counter({"not JSON": 20}), bad_refused=Counter({"not JSON": 20})),
            "kinds of bad requests that were not sent: 1.00, at most 0.00",
        ),
        (
            replace(GOOD, good_sent=220, good_right=220),
            "bad requests, percent of all: 8.33, at least 9.00",
        ),
    ],
)
def test_each_thing_that_is_missing_is_told(tally: Tally, line: str) -> None:
    """Each has a line of its own."""
    assert missed(answer_standings(tally, KINDS)) == [f"missed: {line}"]


def test_a_kind_that_is_refused_too_often_does_not_make_up_for_another() -> None:
    """Refusals count for their own kind."""
    refused = Counter({"not JSON": 12, "too long": 8})

    assert len(missed(answer_standings(replace(GOOD, bad_refused=refused), KINDS))) == 1


def test_a_run_without_requests_does_not_hold() -> None:
    """Nothing was wrong, and nothing was tried."""
    assert len(missed(answer_standings(Tally(), KINDS))) == 4


def test_few_wrong_answers_are_kept() -> None:
    """A run with a million wrong answers stays small."""
    tally = Tally()
    for number in range(1000):
        tally.add_wrong(f"{number}")

    assert tally.failed == 1000
    assert tally.wrong == [f"{number}" for number in range(SHOWN)]
