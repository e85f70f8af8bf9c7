"""Floors: accepted values, and the names of missed ones."""

from __future__ import annotations

import pytest
from benchmarks.standing import Standing, missed, standings_json, standings_table
from rich.console import Console


@pytest.mark.parametrize(
    ("value", "reached"),
    [(0.0, "missed"), (1.79, "missed"), (1.8, "floor"), (1.99, "floor"), (2.0, "aim"), (float("nan"), "missed")],
)
def test_a_value_reaches_the_highest_mark_below_it(value: float, reached: str) -> None:
    """A value equal to a mark reaches it; not-a-number reaches none."""
    assert Standing("rate", value, floor=1.8, aim=2.0).reached == reached


@pytest.mark.parametrize(
    ("value", "reached"), [(0.2, "missed"), (0.15, "floor"), (0.08, "aim"), (float("nan"), "missed")]
)
def test_less_can_be_better(value: float, reached: str) -> None:
    """An example is padding."""
    standing = Standing("waste", value, floor=0.15, aim=0.08, better="less")
    assert standing.reached == reached
    assert standing.bound == "at most 0.15"


def test_each_floor_that_does_not_hold_is_named_with_its_numbers() -> None:
    """Other floors are not named."""
    found = [Standing("first", 1.234, 2, 3), Standing("second", 2.5, 2, 3), Standing("third", 0, 0.5, 1)]

    assert missed(found) == ["missed: first: 1.23, at least 2.00", "missed: third: 0.00, at least 0.50"]
    assert missed(found[1:2]) == []


def test_a_value_that_was_not_measured_is_valid_json() -> None:
    """Strict parsers refuse not-a-number."""
    (told,) = standings_json([Standing("memory", float("nan"), 2, 0.5, "less")])

    assert (told["value"], told["reached"]) == (None, "missed")


def test_all_floors_are_told_to_people_and_machines() -> None:
    """Met floors and missed floors are in the report."""
    found = [Standing("first", 1.234, 2, 3), Standing("second", 2.5, 2, 3)]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(standings_table(found))

    assert [line.split() for line in capture.get().splitlines() if "." in line] == [
        ["first", "1.23", "at", "least", "2.00", "3.00", "missed"],
        ["second", "2.50", "at", "least", "2.00", "3.00", "floor"],
    ]
    assert standings_json(found)[0] == {
        "what": "first",
        "value": 1.234,
        "floor": 2,
        "aim": 3,
        "better": "more",
        "reached": "missed",
    }
