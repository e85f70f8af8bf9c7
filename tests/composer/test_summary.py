"""Summary of verdicts: shares, causes and failures."""

from __future__ import annotations

import io

from composer.summary import shown, summary
from composer.verdict import Outcome, Verdict
from rich.console import Console


def verdict(seed: int, outcome: Outcome, message: str = "", features: tuple[str, ...] = ("norm",)) -> Verdict:
    """Return a verdict with what the summary reads."""
    return Verdict(seed, features, False, outcome, message, "", "", 0.1)


VERDICTS = [
    verdict(0, "accepted"),
    verdict(1, "accepted", features=("flip", "norm")),
    verdict(2, "refused", "ComposedOfSequences.forward holds for 16 only", ("flip",)),
    verdict(3, "bucket lengths only", "ComposedWithLengths.forward holds for 7 only"),
    verdict(4, "wrong", "row 3 differs by 1e-2"),
]


def test_shares_are_those_of_all_models_and_of_those_with_the_feature() -> None:
    """A model that is served at bucket lengths only is not accepted."""
    numbers = summary(VERDICTS)

    assert numbers["accepted_share"] == 0.4
    assert numbers["outcomes"] == {"accepted": 2, "refused": 1, "bucket lengths only": 1, "wrong": 1}
    assert numbers["features"]["flip"] == {"share": 0.4, "accepted_share": 0.5}
    assert numbers["features"]["norm"] == {"share": 0.8, "accepted_share": 0.5}


def test_equal_causes_are_grouped() -> None:
    """Names of classes and numbers make no new cause."""
    assert summary(VERDICTS)["causes"] == [{"cause": "Composed.forward holds for N only", "models": 2, "seeds": [2, 3]}]


def test_failures_are_listed_with_their_seeds() -> None:
    """A wrong answer and a crash are failures; a refusal is none."""
    found = summary([*VERDICTS, verdict(5, "crashed", "lower: KeyError: 'x'")])["failures"]

    assert [(row["seed"], row["outcome"]) for row in found] == [(4, "wrong"), (5, "crashed")]


def test_the_summary_for_people_has_all_of_it() -> None:
    """Shares, causes, failures and the outcomes are printed."""
    out = io.StringIO()
    Console(file=out, width=120).print(shown(summary(VERDICTS)))

    for part in ("norm", "80%", "holds for N only", "2, 3", "seed 4: wrong: row 3", "5 models: 2 accepted"):
        assert part in out.getvalue()
