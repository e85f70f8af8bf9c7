"""`neuron-lstm bench`: an archive measured on this machine, with the lengths of the traffic."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import refusing
from ..report_parts import busy_line, make_table, print_lines
from . import Commands, add_archive, positive, show

if TYPE_CHECKING:
    from rich.console import Console

    from .bench_archive import BenchmarkResult


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "bench",
        help="measure an archive on this machine, with the lengths of your traffic",
        description="Measure an archive on this machine with random inputs: whole batches as they are served, and one "
        "request at a time. TorchServe, decoding and encoding are not measured.",
    )
    add_archive(command)
    command.add_argument(
        "--lengths", required=True, type=Path, help="a file of lengths in timesteps, or a log of TorchServe"
    )
    command.add_argument("--batch", required=True, type=positive, metavar="N", help="requests in a batch")
    command.add_argument(
        "--threads", type=positive, help="threads of one worker (default: as configured, or else cores / maxWorkers)"
    )
    command.add_argument("--json", action="store_true", help="print the figures as JSON")
    command.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> None:
    from ...config.histogram import LengthsError, read_lengths
    from ...inference.open_archive import open_archive
    from ..evaluation.input_ranges import with_ranges_of_tree
    from ..torch_threads import worker_threads
    from .bench_archive import measure_archive, sample_batches

    with refusing(LengthsError, f"{options.lengths}: "):
        histogram = read_lengths(options.lengths)
    with open_archive(options.archive, options.threads or worker_threads(options.archive)) as model:
        loaded = with_ranges_of_tree(model.loaded, model.directory)
        result = measure_archive(loaded, sample_batches(histogram, options.batch))
    for doubt in _doubts(result):
        sys.stderr.write(f"these figures are doubtful: {doubt}\n")
    show(options, lambda: to_json(result), lambda console: print_result(result, console))


def _doubts(result: BenchmarkResult) -> Iterator[str]:
    if result.varying:
        yield f"the turns of {', '.join(result.varying)} vary: run it again while nothing else runs here"
    yield from busy_line(result.measurement)


def print_result(result: BenchmarkResult, console: Console) -> None:
    """Print the figures for people."""
    from .bench_archive import SERVED

    table = make_table("", numbers=("ms per batch", "requests/s", "timesteps/s", "padding", "relative time"))
    for name, timing in result.strategies.items():
        table.add_row(
            name,
            f"{1000 * timing.median_seconds / len(result.batches):.2f}",
            f"{result.requests / timing.median_seconds:,.0f}",
            f"{result.timesteps / timing.median_seconds:,.0f}",
            f"{result.padding_ratio(name):.0%}",
            "" if name == SERVED else f"{timing.median_seconds / result.strategies[SERVED].median_seconds:.2f} x",
        )
    console.print(table)
    if result.stops_rows:
        print_lines(console, f"{result.backend} stops each row at its own end: recurrent layers compute no padding")
    longest, mean = max(map(max, result.batches)), result.timesteps / result.requests
    lengths = f"{mean:.1f} timesteps on average, {longest} at most"
    print_lines(
        console,
        f"{len(result.batches)} batches of {len(result.batches[0])} requests, {lengths}; timesteps are real ones",
        f"{result.backend}, {result.threads} threads; planning a batch takes {result.plan_us:.0f} us",
    )


def to_json(result: BenchmarkResult) -> dict[str, Any]:
    """Return the figures for machines; `seconds` are of all batches, one value per turn, and `waste` is the padding."""
    return {
        "backend": result.backend,
        "threads": result.threads,
        "batches": result.batches,
        "requests": result.requests,
        "timesteps": result.timesteps,
        "plan_us": result.plan_us,
        "doubts": list(_doubts(result)),
        "ways": {
            name: {
                "seconds": timing.seconds,
                "requests_per_s": result.requests / timing.median_seconds,
                "timesteps_per_s": result.timesteps / timing.median_seconds,
                "waste": result.padding_ratio(name),
            }
            for name, timing in result.strategies.items()
        },
    }
