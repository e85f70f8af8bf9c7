"""Cost of sessions: bytes, time of a step, and throughput compared with requests without a session.

One unmodified server with 10,000 open sessions on its disk answers chunks of one token over 64 connections. Steps of
the sessions take turns with chunks that begin and end a session at once, which are the same work without a store.
Then, without a server, one more timestep is compared with all 20 again. Run from the repository's root:
`python -m benchmarks.streaming`. Exits 1 if a floor is missed; the last lines name it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from torchserve_process import DidNotStart, serving

from ..load import Refused
from ..standing import Standing, conclude, plain_table, standings_json, standings_table, write_figures
from .archive import NAME, PREFIX, make_archive
from .compute import Compute, WrongAnswer, measure_compute
from .served import ALONE, STEP, Served, measure_served


def main() -> int:
    """Package, serve, load, compute and report. Returns the exit code."""
    options = _options()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with tempfile.TemporaryDirectory(prefix="streaming-") as folder:
        store, sessions = Path(folder), Path(folder) / "sessions"
        model = make_archive(store, options.workers)
        environment = {"NEURON_LSTM_SESSIONS": str(sessions)}
        with serving(store, {NAME: f"{NAME}.mar"}, environment=environment) as server:
            load = options.connections, options.rounds, options.seconds
            served = measure_served(server, sessions, options.sessions, options.tokens, *load)
        computed = measure_compute(store / f"{NAME}.mar", model, options.rows, options.rounds)
    found = standings(served, computed)
    console = Console()
    print_served(served, console)
    print_computed(computed, console)
    console.print(standings_table(found))
    write_figures(to_json(served, computed, found), options.json)
    return conclude(found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000, help="open at once (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=1, help=f"tokens of a chunk, up to {PREFIX} (default: %(default)s)"
    )
    parser.add_argument("--connections", type=int, default=64, help="clients at once (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="workers of the server (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of load in a turn (default: %(default)s)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32], help="rows of a computed batch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def standings(served: Served, computed: Sequence[Compute]) -> list[Standing]:
    """Return the standings of everything that has a floor."""
    return [
        Standing("requests/s of sessions, times those without", served.ratio, 0.85, 0.92),
        *(
            Standing(f"{PREFIX} steps again, times one more step, {one.rows} rows", one.ratio, 1.0, 4.0)
            for one in computed
        ),
    ]


def print_served(served: Served, console: Console) -> None:
    """Print a row for each kind of request."""
    table = plain_table(f"{served.sessions} open sessions")
    table.add_column("")
    for heading in ("req/s", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for name in (STEP, ALONE):
        figures = served.percentile(name, 50), served.percentile(name, 99)
        table.add_row(name, f"{served.rate(name):,.0f}", *(f"{figure:.1f}" for figure in figures))
    console.print(table)
    stored, on_disk = served.bytes_stored / served.sessions, served.bytes_on_disk / served.sessions
    console.print(f"A session takes {stored:,.0f} bytes, with all around it {on_disk:,.0f} on disk.", highlight=False)


def print_computed(computed: Sequence[Compute], console: Console) -> None:
    """Print a row for each number of rows."""
    table = plain_table("Without a server, on one thread")
    for heading in ("rows", "one more step us", f"all {PREFIX} again us", "ratio"):
        table.add_column(heading, justify="right")
    for one in computed:
        table.add_row(f"{one.rows}", f"{one.step_us:.0f}", f"{one.whole_us:.0f}", f"{one.ratio:.1f}")
    console.print(table)


def to_json(served: Served, computed: Sequence[Compute], found: Sequence[Standing]) -> dict[str, Any]:
    """All figures for machines."""
    return {
        "sessions": served.sessions,
        "bytes_per_session": served.bytes_stored / served.sessions,
        "bytes_per_session_on_disk": served.bytes_on_disk / served.sessions,
        "ratio": served.ratio,
        "requests": {
            name: {
                "requests_per_s": served.rate(name),
                "p50_ms": served.percentile(name, 50),
                "p99_ms": served.percentile(name, 99),
                "rounds": [len(done.milliseconds) / done.seconds for done in served.rounds[name]],
            }
            for name in (STEP, ALONE)
        },
        "compute": [
            {"rows": one.rows, "step_us": one.step_us, "whole_us": one.whole_us, "ratio": one.ratio} for one in computed
        ],
        "floors": standings_json(found),
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DidNotStart, Refused, WrongAnswer) as failed:
        sys.exit(f"the benchmark failed: {failed}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"the benchmark failed: {failed}\n{failed.output}")
