"""`make bench-serve`: `neuron-lstm serve` compared with a plain handler on a stock TorchServe.

All servers have the same model, and the same clients send them requests in turns. The CPU time of a request is that of
Java and of the workers during a turn, divided by its requests.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from running_command import started
from torchserve_process import TorchServe, free_ports, serving

from .classifiers import OURS, PLAIN, compare, load_server, make_archive, make_model
from .engines import TOLERANCES
from .harness import in_rounds, ratio, tell
from .load import Loaded
from .report import Result, Row, Table

_CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Contestant:
    """A TorchServe with one model."""

    handler: str
    """`PLAIN` or `OURS`, which is the model's name too."""
    settings: str
    """`stock`: those of TorchServe without a file; `serve`: those of `neuron-lstm serve`."""
    workers: int
    precision: str = "float32"
    overrides: tuple[str, ...] = ()
    """Settings of config.properties that replace those of `serve`, as KEY=VALUE."""

    @property
    def name(self) -> str:
        """The name in tables."""
        words = [f"{self.handler}, {self.settings}, {self.workers} worker{'s' if self.workers > 1 else ''}"]
        words += [self.precision] if self.precision != "float32" else []
        return ", ".join([*words, *self.overrides])


@dataclass(frozen=True)
class Turn:
    """One server under load, and the seconds of CPU time of its processes."""

    loaded: Loaded
    java_s: float
    workers_s: float

    @property
    def core_ms(self) -> float:
        """Milliseconds of CPU time of one request."""
        return 1000 * (self.java_s + self.workers_s) / len(self.loaded.milliseconds)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the program's options."""
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of load in a turn (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds of load before (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=64, help="clients at once (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="batchSize of all (default: %(default)s)")
    parser.add_argument("--delay", type=int, default=1, help="maxBatchDelay of all, ms (default: %(default)s)")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=sorted({1, _CORES}), help="numbers of workers (default: 1 and cores)"
    )
    precisions = ["bfloat16", "int8"] if platform.machine() == "x86_64" else []
    parser.add_argument("--precisions", nargs="*", default=precisions, help="further archives (default: %(default)s)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one more server, with this setting in place of that of `neuron-lstm serve`; may be repeated",
    )


def measure(options: argparse.Namespace) -> Result:
    """Package, serve, compare with eager mode, and load in turns."""
    model = make_model()
    with ExitStack() as stack:
        stores = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-")))
        servers: dict[Contestant, TorchServe] = {}
        for contestant in _contestants(options):
            store = stores / f"{contestant.workers}-{contestant.precision}"
            store.mkdir(exist_ok=True)
            archive = store / f"{contestant.handler}.mar"
            if not archive.exists():
                tell(f"packaging for {contestant.name}")
                sizes = options.batch_size, options.delay
                make_archive(model, contestant.handler, store, contestant.workers, *sizes, contestant.precision)
            server = servers[contestant] = stack.enter_context(_started(contestant, archive))
            compare(server.inference, _path(contestant), model, TOLERANCES[contestant.precision])
        turns = _turns(servers, options)
    return Result([Table(f"TorchServe under the load of {options.clients} clients", [*_rows(turns)])])


def _contestants(options: argparse.Namespace) -> list[Contestant]:
    """Return all servers; those with another precision or setting have the most workers."""
    most = max(options.workers)
    every = [(PLAIN, "stock"), (OURS, "stock"), (OURS, "serve")]
    return [
        *(Contestant(handler, settings, count) for handler, settings in every for count in options.workers),
        *(Contestant(OURS, "serve", most, precision) for precision in options.precisions),
        *(Contestant(OURS, "serve", most, overrides=(setting,)) for setting in options.set),
    ]


def _path(contestant: Contestant) -> str:
    return f"/predictions/{contestant.handler}"


@contextmanager
def _started(contestant: Contestant, archive: Path) -> Iterator[TorchServe]:
    """Serve an archive under the settings of a contestant."""
    if contestant.settings == "stock":
        models, settings = {contestant.handler: archive.name}, {"job_queue_size": "1000"}
        with serving(archive.parent, models, settings=settings) as server:
            yield server
        return
    (port,) = free_ports(1)
    words = ["serve", str(archive), "--port", str(port), "--disable-token-auth"]
    words += [word for setting in contestant.overrides for word in ("--set", setting)]
    folder = archive.with_name(f"serve-{port}")
    folder.mkdir()
    with started(folder, *words) as command:
        try:
            command.wait_until_served()
            yield TorchServe(port, port + 1, command.log)
        finally:
            command.end(signal.SIGTERM)


def _turns(servers: Mapping[Contestant, TorchServe], options: argparse.Namespace) -> dict[Contestant, list[Turn]]:
    """Load all servers in turns.

    The warm-up is not counted: Java compiles its code until it has answered some ten thousand requests, which costs
    several times what they cost afterwards.
    """
    turns: dict[Contestant, list[Turn]] = {contestant: [] for contestant in servers}
    for contestant in servers:
        load_server(servers[contestant].inference, _path(contestant), options.clients, options.warm_up, -1)
    for number, contestant in in_rounds(servers, options.rounds):
        server = servers[contestant]
        before = _cpu_seconds(server, contestant.handler)
        loaded = load_server(server.inference, _path(contestant), options.clients, options.seconds, number)
        after = _cpu_seconds(server, contestant.handler)
        turns[contestant].append(Turn(loaded, after[0] - before[0], after[1] - before[1]))
    return turns


def _cpu_seconds(server: TorchServe, model: str) -> tuple[float, float]:
    """Return the seconds of CPU time of Java and of the workers until now."""
    workers = [psutil.Process(pid) for pid in server.worker_pids(model)]
    java, *others = [sum(process.cpu_times()[:2]) for process in (workers[0].parent(), *workers)]  # user and system
    return java, sum(others)


def _rows(turns: Mapping[Contestant, Sequence[Turn]]) -> Iterator[Row]:
    """Yield medians over the turns, and ratios to the plain handler with the workers that answer most requests."""
    plain = max(
        (taken for contestant, taken in turns.items() if contestant.handler == PLAIN),
        key=lambda taken: median(turn.loaded.rate for turn in taken),
    )
    for contestant, taken in turns.items():
        core_ms = [turn.core_ms for turn in taken]
        figures = {
            "requests/s": median(turn.loaded.rate for turn in taken),
            "p50, ms": median(turn.loaded.p50 for turn in taken),
            "p99, ms": median(turn.loaded.p99 for turn in taken),
            "core-ms": median(core_ms),
            "Java's": median(1000 * turn.java_s / len(turn.loaded.milliseconds) for turn in taken),
            "core-ms, times plain": ratio(core_ms, [turn.core_ms for turn in plain]),
            "requests/s, times plain": ratio([t.loaded.rate for t in taken], [t.loaded.rate for t in plain]),
            "p99, times plain": ratio([t.loaded.p99 for t in taken], [t.loaded.p99 for t in plain]),
        }
        yield Row("", contestant.name, figures, core_ms)
