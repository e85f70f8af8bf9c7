"""`make bench-serve`: servers of archives compared with a plain handler on a stock TorchServe.

All servers have the same model, and the same clients send them requests in turns: many at once, and one alone. The CPU
time of a request is that of all processes of its server during a turn, divided by the requests of the turn.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from running_command import started
from torchserve_process import free_ports, serving

from .classifiers import OURS, PLAIN, compare, load_server, make_archive, make_model
from .engines import TOLERANCES
from .harness import in_rounds, ratio, tell
from .load import Loaded
from .report import Result, Row, Table

_CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Contestant:
    """A server of an archive, which is started here."""

    handler: str
    """`PLAIN` or `OURS`, which is the model's name too."""
    settings: str
    """`stock`: a TorchServe without a file; `serve`: `neuron-lstm serve`; `builtin`: the same with its own server."""
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
    cpu_s: float

    @property
    def core_ms(self) -> float:
        """Milliseconds of CPU time of one request."""
        return 1000 * self.cpu_s / len(self.loaded.milliseconds)


@dataclass(frozen=True)
class Server:
    """A server that runs: its address, and the process that started all others."""

    port: int
    path: str
    root: psutil.Process

    def turn(self, clients: int, seconds: float, seed: int) -> Turn:
        """Load the server."""
        before = self._sum(_cpu_seconds)
        loaded = load_server(self.port, self.path, clients, seconds, seed)
        return Turn(loaded, self._sum(_cpu_seconds) - before)

    def megabytes(self) -> float:
        """Return the memory of all processes; a page that some of them share counts once."""
        return self._sum(lambda process: process.memory_full_info().pss / 1e6)

    def _sum(self, value: Callable[[psutil.Process], float]) -> float:
        found = 0.0
        for process in (self.root, *self.root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # a stock TorchServe has one for a moment in each minute
                found += value(process)
        return found


def _cpu_seconds(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))  # user and system


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
    parser.add_argument(
        "--running",
        type=_running,
        action="append",
        default=[],
        metavar="NAME=PID:PORT/PATH",
        help="one more server that serves the model already; may be repeated",
    )


def _running(text: str) -> tuple[str, Server]:
    found = re.fullmatch(r"(.+)=(\d+):(\d+)(/.*)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected NAME=PID:PORT/PATH, got {text}")
    return found[1], Server(int(found[3]), found[4], psutil.Process(int(found[2])))


def measure(options: argparse.Namespace) -> Result:
    """Package, serve, compare with eager mode, and load in turns."""
    model = make_model()
    with ExitStack() as stack:
        stores = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-")))
        servers: dict[str, Server] = dict(options.running)
        for server in servers.values():
            compare(server.port, server.path, model)
        for contestant in _contestants(options):
            store = stores / f"{contestant.workers}-{contestant.precision}"
            store.mkdir(exist_ok=True)
            archive = store / f"{contestant.handler}.mar"
            if not archive.exists():
                tell(f"packaging for {contestant.name}")
                sizes = options.batch_size, options.delay
                make_archive(model, contestant.handler, store, contestant.workers, *sizes, contestant.precision)
            server = servers[contestant.name] = stack.enter_context(_started(contestant, archive))
            compare(server.port, server.path, model, TOLERANCES[contestant.precision])
        turns = _turns(servers, options)
        return Result([*_tables(turns, {name: server.megabytes() for name, server in servers.items()})])


def _contestants(options: argparse.Namespace) -> list[Contestant]:
    """Return all servers; those with another precision or setting have the most workers."""
    most = max(options.workers)
    every = [(PLAIN, "stock"), (OURS, "stock"), (OURS, "serve"), (OURS, "builtin")]
    return [
        *(Contestant(handler, settings, count) for handler, settings in every for count in options.workers),
        *(Contestant(OURS, "serve", most, precision) for precision in options.precisions),
        *(Contestant(OURS, "serve", most, overrides=(setting,)) for setting in options.set),
    ]


@contextmanager
def _started(contestant: Contestant, archive: Path) -> Iterator[Server]:
    """Serve an archive under the settings of a contestant."""
    path = f"/predictions/{contestant.handler}"
    if contestant.settings == "stock":
        models, settings = {contestant.handler: archive.name}, {"job_queue_size": "1000"}
        with serving(archive.parent, models, settings=settings) as server:
            worker = psutil.Process(server.worker_pids(contestant.handler)[0])
            yield Server(server.inference, path, worker.parent())
        return
    (port,) = free_ports(1)
    words = ["serve", str(archive), "--port", str(port)]
    if contestant.settings == "builtin":
        words += ["--server", "builtin", "--drain-seconds", "1", "--workers", str(contestant.workers)]
    else:
        words += ["--disable-token-auth", *(f"--set={setting}" for setting in contestant.overrides)]
    folder = archive.with_name(f"serve-{port}")
    folder.mkdir()
    with started(folder, *words) as command:
        try:
            command.wait_until_served()
            yield Server(port, path, psutil.Process(command.process.pid))
        finally:
            command.end(signal.SIGTERM)


def _turns(servers: Mapping[str, Server], options: argparse.Namespace) -> dict[int, dict[str, list[Turn]]]:
    """Load all servers in turns; returns the turns of each for many clients, and for one.

    The warm-up is not counted: Java compiles its code until it has answered some ten thousand requests, which costs
    several times what they cost afterwards.
    """
    turns: dict[int, dict[str, list[Turn]]] = {count: {name: [] for name in servers} for count in (options.clients, 1)}
    for server in servers.values():
        server.turn(options.clients, options.warm_up, -1)
    for number, name in in_rounds(servers, options.rounds):
        for clients, taken in turns.items():
            taken[name].append(servers[name].turn(clients, options.seconds, number))
    return turns


def _tables(turns: Mapping[int, Mapping[str, Sequence[Turn]]], megabytes: Mapping[str, float]) -> Iterator[Table]:
    """Yield medians over the turns, their ratios to the plain handler, and those of the built-in server to them.

    The plain handler and the built-in server are those with the workers that answer most requests.
    """
    for clients, by_name in turns.items():
        values = {name: _values(taken) for name, taken in by_name.items()}
        fastest = sorted(values, key=lambda name: median(values[name]["requests/s"]), reverse=True)
        plain, builtin = (next(name for name in fastest if word in name) for word in (f"{PLAIN}, stock", "builtin"))
        rows = []
        for name, own in values.items():
            figures = {key: median(taken) for key, taken in own.items()} | {"MB": megabytes[name]}
            figures |= {f"{key}, times plain": ratio(taken, values[plain][key]) for key, taken in own.items()}
            figures |= {f"{key}, builtin's times this": ratio(values[builtin][key], own[key]) for key in own}
            figures["MB, builtin's times this"] = megabytes[builtin] / megabytes[name]
            rows.append(Row("", name, figures, own["core-ms"]))
        yield Table(f"Under the load of {clients} client{'s' * (clients > 1)}", rows)


def _values(turns: Sequence[Turn]) -> dict[str, list[float]]:
    return {
        "requests/s": [turn.loaded.rate for turn in turns],
        "p50 (ms)": [turn.loaded.p50 for turn in turns],
        "p99 (ms)": [turn.loaded.p99 for turn in turns],
        "core-ms": [turn.core_ms for turn in turns],
    }
