"""The requests of the sessions benchmark, and its figures from the answers."""

from __future__ import annotations

import pytest
from benchmarks.load import Load
from benchmarks.streaming.__main__ import standings, to_json
from benchmarks.streaming.compute import Compute
from benchmarks.streaming.served import ALONE, STEP, Served, requests


def rounds(*answers: int) -> list[Load]:
    """Rounds of one second each, with `answers` answers of 1, 2, 3, ... milliseconds."""
    return [Load([float(number + 1) for number in range(count)], 1.0) for count in answers]


def served(step: list[Load], alone: list[Load]) -> Served:
    """Ten sessions of 50 bytes."""
    return Served(10, 500, 800, {STEP: step, ALONE: alone})


def test_both_kinds_of_request_are_the_same_but_for_what_they_say_of_their_session() -> None:
    """Both have the same session and the same tokens, and nearly the same size."""
    begin, asked = requests(20, tokens=3)

    assert len(begin) == len(asked[STEP]) == len(asked[ALONE]) == len(set(asked[STEP])) == 20
    for first, step, alone in zip(begin, asked[STEP], asked[ALONE], strict=True):
        assert len({request.partition(b"\r\n\r\n")[2] for request in (first, step, alone)}) == 1
        assert step.replace(b"false", b"true") == alone
        assert b"sequence_start: true" in first
        assert b"sequence_end" not in first


def test_throughputs_are_compared_round_by_round() -> None:
    """A slow moment of the machine affects both of a pair."""
    found = served(rounds(80, 40, 90), rounds(100, 50, 100))

    assert found.ratio == pytest.approx(0.8)
    assert found.rate(STEP) == pytest.approx(80)
    assert found.percentile(ALONE, 50) == pytest.approx(50.5)


def test_floors_are_of_the_throughput_and_of_each_number_of_rows() -> None:
    """The order is fixed, and the JSON has all figures."""
    computed = [Compute(1, 10.0, 50.0), Compute(8, 10.0, 5.0)]
    found = standings(served(rounds(90), rounds(100)), computed)

    assert [standing.value for standing in found] == [pytest.approx(0.9), pytest.approx(5.0), pytest.approx(0.5)]
    assert [standing.reached for standing in found] == ["floor", "aim", "missed"]
    told = to_json(served(rounds(80), rounds(100)), computed, found)
    assert (told["bytes_per_session"], told["bytes_per_session_on_disk"]) == (50, 80)
    assert set(told["requests"]) == {STEP, ALONE}
