"""What `neuron-lstm bench` tells: a table for people, JSON for machines."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from .bench_archive import SERVED, BenchmarkResult


def print_result(found: BenchmarkResult, console: Console) -> None:
    """Print the figures as people read them."""
    table = Table("", highlight=False)
    for heading in ("ms a batch", "requests/s", "timesteps/s", "padding", "gain"):
        table.add_column(heading, justify="right")
    for name, way in found.strategies.items():
        table.add_row(
            name,
            f"{1000 * way.took / len(found.batches):.2f}",
            f"{found.requests / way.took:,.0f}",
            f"{found.timesteps / way.took:,.0f}",
            f"{found.padding_ratio(name):.0%}",
            "" if name == SERVED else f"{way.took / found.strategies[SERVED].took:.2f} x",
        )
    console.print(table)
    for line in _facts(found):
        console.print(line, highlight=False, soft_wrap=True)


def _facts(found: BenchmarkResult) -> list[str]:
    longest, mean = max(map(max, found.batches)), found.timesteps / found.requests
    lengths = f"{mean:.1f} timesteps on average, {longest} at most"
    return [
        f"{len(found.batches)} batches of {len(found.batches[0])} requests, {lengths}; timesteps are real ones",
        f"{found.backend}, {found.threads} threads; planning a batch takes {found.plan_us:.0f} us",
        f"the machine multiplies matrices at {found.gemm_gflops:.0f} GFLOP/s",
    ]


def to_json(found: BenchmarkResult) -> dict[str, Any]:
    """The same for machines; `seconds` are of all batches, one value a round."""
    return {
        "backend": found.backend,
        "threads": found.threads,
        "batches": found.batches,
        "requests": found.requests,
        "timesteps": found.timesteps,
        "plan_us": found.plan_us,
        "gemm_gflops": found.gemm_gflops,
        "ways": {
            name: {
                "seconds": way.seconds,
                "requests_per_s": found.requests / way.took,
                "timesteps_per_s": found.timesteps / way.took,
                "waste": found.padding_ratio(name),
            }
            for name, way in found.strategies.items()
        },
    }
