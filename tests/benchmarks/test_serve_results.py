"""The results of all contestants of the benchmark of `neuron-lstm serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from benchmarks.rest.archives import OURS, PLAIN
from benchmarks.serve.contestants import Contestant, contestants
from benchmarks.serve.results import Results, ServedRound, core_ms, java_ms, print_results, standings, to_json
from benchmarks.serve.servers import CpuTime
from rich.console import Console

SECONDS = 2.0


def steady(count: int, milliseconds: float, java: float, workers: float) -> ServedRound:
    """Two seconds in which all answers took equally long; `java` and `workers` are core-ms of a request."""
    cpu = CpuTime(java * count / 1000, workers * count / 1000)
    return ServedRound((milliseconds,) * count, SECONDS, 0.1, cpu)


def results() -> Results:
    """Two rounds each: ours has four times the rate of the plain handler and a fifth of its CPU time."""
    rounds: Mapping[Contestant, Sequence[ServedRound]] = {
        one: [steady(1000, 100, 0.5, 2.0), steady(1200, 100, 0.5, 2.0)] for one in contestants(2)
    }
    slow = {Contestant(PLAIN, "stock", 1): [steady(100, 900, 0.5, 20.0)] * 2}
    fast = {Contestant(OURS, "serve", 2): [steady(4000, 30, 0.1, 0.4), steady(4800, 30, 0.1, 0.4)]}
    half = {Contestant(OURS, "serve", 2, precision="bfloat16"): [steady(8000, 15, 0.1, 0.1)] * 2}
    return Results({**rounds, **slow, **fast, **half})


def test_every_setting_is_brought_back_alone() -> None:
    """The other settings are those of `neuron-lstm serve`."""
    back = [one for one in contestants(4) if one.back]

    assert {one.settings for one in back} == {"serve"}
    assert {one.workers for one in back} == {4}
    assert len({one.name for one in contestants(4)}) == len(contestants(4))


def test_one_core_has_each_server_once() -> None:
    """One worker and one for each core are the same there."""
    assert len({one.name for one in contestants(1)}) == len(contestants(1))


def test_a_request_costs_the_time_of_java_and_of_the_workers() -> None:
    """In milliseconds of one core."""
    taken = steady(500, 50, 0.25, 0.75)

    assert core_ms(taken) == pytest.approx(1.0)
    assert java_ms(taken) == pytest.approx(0.25)


def test_each_handler_is_told_by_its_best_number_of_workers_in_float32() -> None:
    """One worker of the plain handler makes every rival look good; half precision has other answers."""
    found = results()

    assert found.best(PLAIN, "stock").workers == 2
    assert found.best(OURS, "serve") == Contestant(OURS, "serve", 2)
    cpu, faster, tail = standings(found)
    assert (cpu.value, faster.value, tail.value) == pytest.approx((0.2, 4.0, 0.3))
    assert [one.reached for one in (cpu, faster, tail)] == ["aim", "aim", "aim"]


def test_the_table_has_a_row_for_each_server() -> None:
    """With the CPU time beside that of `neuron-lstm serve` with as many workers."""
    console = Console(width=120)
    with console.capture() as capture:
        print_results(results(), console)

    assert "ours, serve, 2 workers, stock log" in capture.get()
    assert "5.00" in capture.get()
    assert set(to_json(results())["rounds"]) == {one.name for one in results().rounds}
