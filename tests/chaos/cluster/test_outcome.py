"""The criteria of a successful run on a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from chaos.cluster.kinds import Kind
from chaos.cluster.outcome import LEAST, Outcome
from chaos.cluster.rolling_update import Update
from chaos.tally import Tally
from chaos.verdict import Verdict

DISTURBED = Counter({kind.value: count for kind, count in LEAST.items()})
TALLY = Tally(answers=Counter({Verdict.RIGHT: 20}), finished=4, disturbances=DISTURBED)
GOOD = Outcome(TALLY, begun=4, chunks=5, update=Update(old=10, new=10))


def test_a_run_without_a_loss_and_with_enough_disturbances_holds() -> None:
    """There are no failures."""
    assert GOOD.failures(LEAST) == []


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (replace(GOOD, tally=replace(TALLY, lost=["s1: 410"])), "a session was lost: s1: 410"),
        (replace(GOOD, tally=replace(TALLY, strange=["s1: twice"])), "an answer is not right: s1: twice"),
        (replace(GOOD, begun=5, tally=replace(TALLY, answers=Counter({Verdict.RIGHT: 25}))), "4 of 5 sessions"),
        (replace(GOOD, update=Update(old=1, new=1, refused=["503"])), "the update refused a request: 503"),
        (replace(GOOD, update=Update(old=1, new=1, wrong=["{}"])), "an answer during the update is of neither"),
        (replace(GOOD, update=Update(old=0, new=1)), "the update was not under load: 0 old and 1 new answers"),
    ],
)
def test_each_thing_that_is_wrong_is_told(outcome: Outcome, told: str) -> None:
    """Each has a line of its own."""
    (found,) = outcome.failures(LEAST)

    assert found.startswith(told)


@pytest.mark.parametrize("kind", Kind)
def test_too_few_disturbances_of_any_kind_fail(kind: Kind) -> None:
    """One fewer than needed is too few."""
    tally = replace(TALLY, disturbances=DISTURBED - Counter({kind.value: 1}))

    assert replace(GOOD, tally=tally).failures(LEAST) == [
        f"{kind.value}: {LEAST[kind] - 1}, at least {LEAST[kind]} are needed"
    ]


def test_the_report_counts_what_went_wrong() -> None:
    """Lost, wrong, twice and refused have a figure each."""
    answers = Counter({Verdict.RIGHT: 17, Verdict.WRONG: 2, Verdict.TWICE: 1})
    figures = Outcome(
        replace(TALLY, answers=answers, lost=["s1"]), 4, 5, Update(old=1, new=2, refused=["503"] * 3)
    ).figures()

    assert figures["answers given"] == 20
    assert (figures["sessions lost"], figures["answers wrong"], figures["chunks applied twice"]) == (1, 2, 1)
    assert figures["update: requests refused"] == 3
    assert figures["replicas killed"] == LEAST[Kind.REPLICA]
