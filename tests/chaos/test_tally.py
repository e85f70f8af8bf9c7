"""The criteria of a successful trial."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from chaos.tally import Tally, failures
from chaos.verdict import Verdict

GOOD = Tally(answers=Counter({Verdict.RIGHT: 20}), finished=4, worker_kills=3, server_kills=1)


def found(tally: Tally) -> list[str]:
    """The failures of four sessions of five chunks, with three kills of workers and one of a server."""
    return failures(tally, sessions=4, chunks=5, kills=3, servers=1)


def test_a_trial_without_a_loss_and_with_enough_kills_holds() -> None:
    """There are no failures."""
    assert found(GOOD) == []


@pytest.mark.parametrize(
    ("tally", "told"),
    [
        (replace(GOOD, lost=["s1: 410"]), "a session was lost: s1: 410"),
        (replace(GOOD, strange=["s1: twice"]), "an answer is not right: s1: twice"),
        (replace(GOOD, finished=3), "3 of 4 sessions came to their end"),
        (replace(GOOD, answers=Counter({Verdict.RIGHT: 19})), "19 answers to 20 chunks"),
        (replace(GOOD, worker_kills=2), "only 2 workers were killed, at least 3 should be"),
        (replace(GOOD, server_kills=0), "only 0 servers were killed, 1 should be"),
    ],
)
def test_each_thing_that_is_missing_is_told(tally: Tally, told: str) -> None:
    """Each has a line of its own."""
    assert found(tally) == [told]
