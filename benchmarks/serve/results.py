"""Results of all contestants, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console

from ..rest.archives import OURS, PLAIN
from ..rest.results import Round, p50, p99, rate
from ..standing import Standing, plain_table
from .contestants import Contestant
from .servers import CpuTime


@dataclass(frozen=True)
class ServedRound(Round):
    """The results of one server under load for a while, with the CPU time that it took."""

    cpu: CpuTime


def core_ms(taken: ServedRound) -> float:
    """Milliseconds of CPU time of Java and of the workers for one request."""
    return 1000 * sum(taken.cpu) / len(taken.milliseconds)


def java_ms(taken: ServedRound) -> float:
    """Milliseconds of CPU time of Java for one request."""
    return 1000 * taken.cpu.java / len(taken.milliseconds)


@dataclass(frozen=True)
class Results:
    """All rounds of all contestants."""

    rounds: Mapping[Contestant, Sequence[ServedRound]]

    def median(self, contestant: Contestant, figure: Callable[[ServedRound], float]) -> float:
        """Return the median of a figure over the rounds of a contestant."""
        return median(figure(taken) for taken in self.rounds[contestant])

    def times(self, one: Contestant, other: Contestant, figure: Callable[[ServedRound], float]) -> float:
        """Return the median over the rounds of the ratio of `one` to `other` in the same round."""
        pairs = zip(self.rounds[one], self.rounds[other], strict=True)
        return median(figure(mine) / figure(other) for mine, other in pairs)

    def best(self, handler: str, settings: str) -> Contestant:
        """Return the contestant with the number of workers that answers most requests a second."""
        wanted = (handler, settings, "", "float32")
        found = [one for one in self.rounds if (one.handler, one.settings, one.back, one.precision) == wanted]
        return max(found, key=lambda one: self.median(one, rate))


def standings(results: Results) -> list[Standing]:
    """The standings of all floors."""
    other, ours = results.best(PLAIN, "stock"), results.best(OURS, "serve")
    than = "times the plain handler's on stock settings"
    return [
        Standing(f"core-ms of a request, {than}", results.times(ours, other, core_ms), 0.30, 0.22, "less"),
        Standing(f"requests/s, {than}", results.times(ours, other, rate), 2.5, 3.5),
        Standing(f"p99, {than}", results.times(ours, other, p99), 0.5, 0.35, "less"),
    ]


def print_results(results: Results, console: Console) -> None:
    """Print a row for each contestant, with its CPU time over that of `neuron-lstm serve`."""
    table = plain_table("TorchServe with 64 clients")
    table.add_column("")
    for heading in ("req/s", "p50 ms", "p99 ms", "core-ms", "Java's", "times serve's"):
        table.add_column(heading, justify="right")
    serve = {one.workers: one for one in results.rounds if one == Contestant(OURS, "serve", one.workers)}
    for one in results.rounds:
        table.add_row(
            one.name,
            f"{results.median(one, rate):,.0f}",
            *(f"{results.median(one, figure):.1f}" for figure in (p50, p99)),
            *(f"{results.median(one, figure):.2f}" for figure in (core_ms, java_ms)),
            f"{results.times(one, serve[one.workers], core_ms):.2f}",
        )
    console.print(table)


def to_json(results: Results) -> dict[str, Any]:
    """The results for machines."""
    return {"rounds": {one.name: [_round(taken) for taken in rounds] for one, rounds in results.rounds.items()}}


def _round(taken: ServedRound) -> dict[str, float]:
    return {
        "requests": len(taken.milliseconds),
        "requests_per_s": rate(taken),
        "p50_ms": p50(taken),
        "p99_ms": p99(taken),
        "java_s": taken.cpu.java,
        "workers_s": taken.cpu.workers,
        "client_s": taken.client_s,
    }
