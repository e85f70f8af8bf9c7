"""The report of `python -m benchmarks.archives`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from benchmarks.archives import Measured, _as_json, standings
from benchmarks.standing import missed

GOOD = Measured(
    buckets=12,
    rebuild_s=100.0,
    replace_s=10.0,
    differing=0,
    compared=164,
    compile_one_s=90.0,
    compile_parallel_s=50.0,
    processes=2,
    archive_bytes=11_000_000,
    weights_bytes=10_000_000,
)


def test_good_figures_miss_nothing() -> None:
    """All figures are within their aims."""
    assert missed(standings(GOOD)) == []
    assert [standing.reached for standing in standings(GOOD)] == ["aim"] * 3


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (replace(GOOD, differing=1), "answers that differ from the rebuilt archive's: 1.00, at most 0.00"),
        (replace(GOOD, replace_s=100.0), "time of new weights, as a part of a full rebuild's: 1.00"),
        (replace(GOOD, archive_bytes=20_000_000), "size of the archive, in copies of the weights: 2.00"),
    ],
)
def test_a_floor_that_is_missed_is_named(bad: Measured, said: str) -> None:
    """The failures are an answer that differs, no time saved, and a second copy of the weights."""
    (line,) = missed(standings(bad))

    assert said in line


def test_the_figures_are_json_with_their_ratios() -> None:
    """Other programs can show the figures."""
    told = json.loads(json.dumps(_as_json(GOOD, standings(GOOD))))

    assert (told["buckets"], told["replace_ratio"], told["compile_ratio"], told["copies"]) == (12, 0.1, 1.8, 1.1)
    assert [standing["reached"] for standing in told["standings"]] == ["aim"] * 3
