"""Results of the servers, and what must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from rich.console import Console

from ..rest.results import Round, p50, p99, rate
from ..standing import Standing, plain_table
from .scaling import Scaling

OURS, TORCHSERVE, PLAIN, PLAIN_REPLICAS = "ours on Ray Serve", "ours on TorchServe", "plain", "plain, a thread each"
Rounds = Mapping[str, tuple[Round, ...]]


def middle(rounds: Rounds, name: str, figure: Callable[[Round], float]) -> float:
    """Return the median of a server over its rounds."""
    return median(figure(taken) for taken in rounds[name])


def times(rounds: Rounds, figure: Callable[[Round], float], other: str) -> float:
    """Return the ratio of our median on Ray Serve to another application's."""
    return middle(rounds, OURS, figure) / middle(rounds, other, figure)


def standings(rounds: Rounds, scaling: Scaling | None) -> list[Standing]:
    """The standings of all floors."""
    found = [
        Standing("requests/s, times plain Ray Serve with ONNX Runtime padded", times(rounds, rate, PLAIN), 2.5, 4.0),
        Standing("p99, times that of the same", times(rounds, p99, PLAIN), 1.0, 0.5, "less"),
        Standing("requests/s, times our own TorchServe", times(rounds, rate, TORCHSERVE), 0.8, 1.1),
    ]
    if scaling is not None:
        found.append(Standing("requests/s of two replicas, times one", scaling.times, 1.7, 1.9))
        found.append(Standing("the engine's share of the CPU time then", scaling.engine_share, 0.9, 0.95))
    return found


def print_results(rounds: Rounds, console: Console) -> None:
    """Print a row for each server: medians over the rounds."""
    table = plain_table("64 clients at once, medians")
    for heading in ("", "req/s", "p50 ms", "p99 ms", "times ours"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in rounds:
        cells = [f"{middle(rounds, name, figure):,.1f}" for figure in (rate, p50, p99)]
        table.add_row(name, *cells, f"{1 / times(rounds, rate, name):.2f}")
    console.print(table)


def to_json(rounds: Rounds, scaling: Scaling | None) -> dict[str, Any]:
    """The results for machines."""
    figures: dict[str, Any] = {
        name: [{"requests_per_s": rate(one), "p50_ms": p50(one), "p99_ms": p99(one)} for one in taken]
        for name, taken in rounds.items()
    }
    if scaling is not None:
        figures["scaling"] = {"one": scaling.one, "two": scaling.two, "engine_share": scaling.engine_share}
    return figures
