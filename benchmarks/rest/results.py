"""Results of the clients of both servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from rich.console import Console

from ..standing import Standing, plain_table
from .archives import OURS, PLAIN


@dataclass(frozen=True)
class Round:
    """The results of one server under load for a while."""

    milliseconds: tuple[float, ...]
    """Milliseconds of each response, as seen by its client."""
    seconds: float
    client_s: float
    """Seconds of CPU time that the clients themselves took."""


def rate(taken: Round) -> float:
    """Requests a second."""
    return len(taken.milliseconds) / taken.seconds


def p50(taken: Round) -> float:
    """Milliseconds within which half of the answers arrived."""
    return median(taken.milliseconds)


def p99(taken: Round) -> float:
    """Milliseconds within which 99 % of the answers arrived."""
    return quantiles(taken.milliseconds, n=100)[98]


@dataclass(frozen=True)
class Results:
    """All rounds of both servers."""

    rounds: Mapping[str, tuple[Round, ...]]
    cores: int

    def median(self, name: str, figure: Callable[[Round], float]) -> float:
        """Return the median of a server over its rounds."""
        return median(figure(taken) for taken in self.rounds[name])

    def times(self, figure: Callable[[Round], float]) -> float:
        """The ratio of our median of a figure to the plain handler's."""
        return self.median(OURS, figure) / self.median(PLAIN, figure)

    @property
    def client_share(self) -> float:
        """The share of the machine's cores that the clients took: the maximum over all rounds."""
        every = [taken for rounds in self.rounds.values() for taken in rounds]
        return max(taken.client_s / taken.seconds for taken in every) / self.cores


def standings(results: Results) -> list[Standing]:
    """The standings of both floors."""
    return [
        Standing("requests/s, times those of the plain handler", results.times(rate), 1.8, 2.4),
        Standing("p99, times that of the plain handler", results.times(p99), 1.0, 0.5, "less"),
    ]


def print_results(results: Results, console: Console) -> None:
    """Print a row for each server and round, then the medians."""
    table = plain_table("TorchServe under load")
    table.add_column("")
    for server in (PLAIN, OURS):
        for heading in (f"{server} req/s", "p50 ms", "p99 ms"):
            table.add_column(heading, justify="right")
    pairs = zip(results.rounds[PLAIN], results.rounds[OURS], strict=True)
    for number, pair in enumerate(pairs, 1):
        table.add_row(
            f"round {number}", *(cell for taken in pair for cell in _cells(rate(taken), p50(taken), p99(taken)))
        )
    table.add_section()
    medians = [[results.median(server, figure) for figure in (rate, p50, p99)] for server in (PLAIN, OURS)]
    table.add_row("median", *(cell for row in medians for cell in _cells(*row)))
    console.print(table)
    share = f"{results.client_share:.0%} of the {results.cores} cores"
    console.print(f"The clients themselves took {share} at most.", highlight=False)


def _cells(per_second: float, half: float, nearly_all: float) -> tuple[str, str, str]:
    return f"{per_second:,.0f}", f"{half:.1f}", f"{nearly_all:.1f}"


def to_json(results: Results) -> dict[str, Any]:
    """The results for machines."""
    return {
        "cores": results.cores,
        "client_share": results.client_share,
        "rounds": {name: [_round(taken) for taken in rounds] for name, rounds in results.rounds.items()},
    }


def _round(taken: Round) -> dict[str, float]:
    return {
        "requests": len(taken.milliseconds),
        "requests_per_s": rate(taken),
        "p50_ms": p50(taken),
        "p99_ms": p99(taken),
        "client_s": taken.client_s,
    }
