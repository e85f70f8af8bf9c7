"""The results of both servers' rounds."""

from __future__ import annotations

import pytest
from benchmarks.rest.archives import OURS, PLAIN
from benchmarks.rest.results import Results, Round, p50, p99, print_results, rate, standings, to_json
from rich.console import Console


def steady(count: int, milliseconds: float, slow: float, client_s: float = 0.1) -> Round:
    """Two seconds in which 2 % of the answers were slow."""
    few = count // 50
    return Round((milliseconds,) * (count - few) + (slow,) * few, 2.0, client_s)


def results() -> Results:
    """Three rounds each: ours has twice the rate, and a third of the slowest times."""
    plain = tuple(steady(count, 50, slow) for count, slow in ((1000, 90), (1100, 120), (900, 150)))
    ours = tuple(steady(count, 20, slow, client_s=0.4) for count, slow in ((2000, 40), (2200, 30), (9000, 50)))
    return Results({PLAIN: plain, OURS: ours}, cores=2)


def test_a_round_is_told_by_its_rate_and_percentiles() -> None:
    """The report has requests per second, and milliseconds for 50 % and 99 % of the requests."""
    one = steady(1000, 50, 90)
    assert (rate(one), p50(one), p99(one)) == (500, 50, 90)


def test_floors_are_ratios_of_medians() -> None:
    """An outlying round does not count; a lower p99 is a lower ratio."""
    faster, tail = standings(results())
    assert faster.value == pytest.approx(2.2)
    assert faster.reached == "floor"
    assert tail.value == pytest.approx(1 / 3)
    assert tail.reached == "aim"


def test_a_tail_that_is_longer_than_the_plain_handlers_is_missed() -> None:
    """A higher rate does not compensate."""
    slow = Results({PLAIN: (steady(1000, 50, 90),), OURS: (steady(9000, 5, 91),)}, cores=2)
    assert [standing.reached for standing in standings(slow)] == ["aim", "missed"]


def test_the_clients_own_share_of_the_machine_is_told() -> None:
    """The maximum over all rounds counts: clients that are the bottleneck would make all servers equal."""
    assert results().client_share == pytest.approx(0.1)
    console = Console(width=80)
    with console.capture() as capture:
        print_results(results(), console)
    assert "clients themselves took 10% of the 2 cores" in capture.get()
    assert "1,100" in capture.get()
    assert to_json(results())["rounds"][PLAIN][0]["p99_ms"] == 90
