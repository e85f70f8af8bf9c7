"""Summary of many verdicts: shares of outcomes and of features, and the causes of refusals."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .features import FEATURES
from .verdict import Verdict

_FAILED = ("wrong", "crashed")


def summary(verdicts: Collection[Verdict]) -> dict[str, Any]:
    """Return the numbers, as they are printed with `--json`.

    >>> summary([])["models"]
    0
    """
    outcomes = Counter(verdict.outcome for verdict in verdicts)
    return {
        "models": len(verdicts),
        "outcomes": dict(outcomes.most_common()),
        "accepted_share": round(outcomes["accepted"] / len(verdicts), 3) if verdicts else None,
        "features": {name: _of_feature(name, verdicts) for name in FEATURES},
        "causes": _causes([v for v in verdicts if v.outcome in ("refused", "bucket lengths only")]),
        "failures": [
            {"seed": v.seed, "outcome": v.outcome, "message": v.message} for v in verdicts if v.outcome in _FAILED
        ],
    }


def _of_feature(name: str, verdicts: Collection[Verdict]) -> dict[str, float]:
    having = [verdict for verdict in verdicts if name in verdict.features]
    accepted = sum(verdict.outcome == "accepted" for verdict in having)
    return {
        "share": round(len(having) / max(1, len(verdicts)), 3),
        "accepted_share": round(accepted / max(1, len(having)), 3),
    }


def _causes(verdicts: Collection[Verdict]) -> list[dict[str, Any]]:
    """Group by the reason of the second way of lowering, which takes more models than the first."""
    seeds: dict[str, list[int]] = defaultdict(list)
    for verdict in verdicts:
        seeds[cause(verdict)].append(verdict.seed)
    most = sorted(seeds.items(), key=lambda item: -len(item[1]))
    return [{"cause": name, "models": len(found), "seeds": found[:5]} for name, found in most]


def cause(verdict: Verdict) -> str:
    """Return a refusal in a form that is the same for all models: without names and numbers.

    >>> verdict = Verdict(3, (), False, "refused", "", "A.f holds only if L['x'].size()[1] == 16", "", 0.1)
    >>> cause(verdict)
    "A.f holds only if L['x'].size()[N] == N"
    """
    text = (verdict.because or verdict.message).split("\n", 1)[0]
    text = re.sub(r"ComposedOfSequences|ComposedWithLengths", "Composed", text)
    return re.sub(r"(?<![\w.:])\d+(?!\w)", "N", text)[:300]


def shown(numbers: dict[str, Any]) -> Group:
    """Return the summary for people."""
    features = Table(title="Features", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("", "share of the models", "of them accepted"):
        features.add_column(column, justify="right" if column else "left")
    for name, shares in numbers["features"].items():
        features.add_row(name, f"{shares['share']:.0%}", f"{shares['accepted_share']:.0%}")
    causes = Table(title="Refused, or bucket lengths only", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("models", "cause", "seeds"):
        causes.add_column(column)
    for row in numbers["causes"]:
        causes.add_row(str(row["models"]), Text(row["cause"]), ", ".join(map(str, row["seeds"])))
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in numbers["outcomes"].items())
    lines = [f"seed {row['seed']}: {row['outcome']}: {row['message']}" for row in numbers["failures"]]
    return Group(features, causes, Text("\n".join([*lines, f"{numbers['models']} models: {outcomes}"])))
