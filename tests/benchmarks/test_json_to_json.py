"""Shares from JSON to JSON, from the seconds of each case."""

from __future__ import annotations

from functools import partial

from benchmarks.json_to_json import FLOORS, FMA, race, standings


def test_a_case_that_runs_at_the_rate_of_multiply_adds_has_a_share_of_one() -> None:
    """The median decides, and a slower case misses its floor."""
    rate = 100.0
    exact = {case.name: (case.flop / rate / 1e9,) * 3 for case in FLOORS}
    assert [round(found.value, 9) for found in standings(exact, rate)] == [1.0] * len(FLOORS)

    slow = {name: (taken[0], 4 * taken[0], 4 * taken[0]) for name, taken in exact.items()}
    assert {(round(found.value, 9), found.reached) for found in standings(slow, rate)} == {(0.25, "missed")}


def test_calls_take_turns_and_the_first_round_does_not_count() -> None:
    """Every call has as many times as there are rounds."""
    ran: list[str] = []

    taken = race({name: partial(ran.append, name) for name in (FMA, "a")}, rounds=2)

    assert ran == [FMA, "a"] * 3
    assert {name: len(seconds) for name, seconds in taken.items()} == {FMA: 2, "a": 2}
