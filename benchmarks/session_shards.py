"""Sessions on one Redis against sessions on a cluster of three; the unit is plain SET on the one.

Run from the repository's root: `python -m benchmarks.session_shards [--rounds 7] [--seconds 1] [--clients 4]
[--batches 8 64]`.

A request is one of a session: its record is read, and written. Several client processes send batches of random
sessions. In every round each contestant runs once, beginning with another one. All figures are ratios within a round,
and the table has their medians. The servers and the clients share the cores of one machine, so the rate of the cluster
is not that of three machines. The CPU time of the servers is: that of the busiest one, for each request,
limits a cluster whose servers have a core each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from redis import Redis
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from redis_cluster import running_cluster
from redis_server import RedisServer, running, server_programs

from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.settings import Limits, RedisSettings
from torchserve_neuron_lstm.sessions.store import RecordUpdate, Store, StoredRecord, Written

SESSIONS = 4000
RECORD = random.Random(0).randbytes(5120)
LIMITS = Limits(sessions=1_000_000, bytes=1 << 40, idle_seconds=3600.0)
CONTESTANTS = ("one", "three", "set")


@dataclass(frozen=True)
class Turn:
    """One turn of a contestant."""

    rate: float
    """Requests, or SET commands, of all clients per second."""
    cpu: tuple[float, ...]
    """Seconds of CPU time of each server for each request, or SET command."""


@dataclass(frozen=True)
class Round:
    """The turns of one round."""

    one: Turn
    three: Turn
    set: Turn

    def ratios(self) -> tuple[float, ...]:
        """Return the columns of the table."""
        (alone,) = self.one.cpu
        return (
            self.three.rate / self.one.rate,
            sum(self.three.cpu) / alone,
            max(self.three.cpu) / sum(self.three.cpu),
            alone / max(self.three.cpu),
            self.set.cpu[0] / alone,
        )


COLUMNS = (
    "sessions in a batch",
    "requests per second, three / one",
    "CPU of all servers per request, three / one",
    "share of the busiest of the three",
    "ceiling, three / one",
    "requests per core of one, in SETs",
)


def use_store(store: Store, batch: int, choice: random.Random) -> None:
    """Read and write a batch of random sessions; those that another client wrote in between count too."""
    names = [f"session-{name}" for name in choice.sample(range(SESSIONS), batch)]
    found = [one for one in store.read(names) if isinstance(one, StoredRecord)]
    store.write([RecordUpdate(name, RECORD, one.revision) for name, one in zip(names, found, strict=True)])


def use_set(client: Redis, batch: int, choice: random.Random) -> None:
    """Set a batch of random keys in one round trip."""
    pipeline = client.pipeline(transaction=False)
    for name in choice.sample(range(SESSIONS), batch):
        pipeline.set(f"key-{name}", RECORD)
    pipeline.execute()


def client(orders: Connection, port: int, cluster: str, seed: int) -> None:
    """Run a client process: use a contestant for each order, and send the number of requests."""
    choice = random.Random(seed)
    one = RedisStore(RedisSettings(f"redis://127.0.0.1:{port}", timeout_seconds=30.0), "model", LIMITS)
    three = RedisStore(RedisSettings(cluster, timeout_seconds=30.0, cluster=True), "model", LIMITS)
    plain = Redis(port=port)
    uses: dict[str, Callable[[int], None]] = {
        "one": lambda batch: use_store(one, batch, choice),
        "three": lambda batch: use_store(three, batch, choice),
        "set": lambda batch: use_set(plain, batch, choice),
    }
    while (order := orders.recv()) is not None:
        contestant, batch, seconds = order
        requests, deadline = 0, time.monotonic() + seconds
        while time.monotonic() < deadline:
            uses[contestant](batch)
            requests += batch
        orders.send(requests)


def fill(store: RedisStore) -> None:
    """Write all sessions."""
    for first in range(0, SESSIONS, 200):
        names = [f"session-{name}" for name in range(first, first + 200)]
        outcomes = store.write([RecordUpdate(name, RECORD, None) for name in names])
        assert all(outcome == Written() for outcome in outcomes)
    store.close()


def take_turn(clients: Sequence[Connection], servers: Sequence[RedisServer], order: tuple[str, int, float]) -> Turn:
    """Let all clients use a contestant at once."""
    before = [cpu_seconds(server) for server in servers]
    for one in clients:
        one.send(order)
    requests = sum(one.recv() for one in clients)
    after = [cpu_seconds(server) for server in servers]
    return Turn(requests / order[2], tuple((end - begin) / requests for begin, end in zip(before, after, strict=True)))


def cpu_seconds(server: RedisServer) -> float:
    """Return the CPU time of a server until now."""
    with server.client() as asking:
        told = asking.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def measure(
    clients: Sequence[Connection],
    one: RedisServer,
    three: Sequence[RedisServer],
    batch: int,
    options: argparse.Namespace,
) -> list[Round]:
    """Run all rounds for one size of batches; the first one, which connects, does not count."""
    rounds = []
    for number in range(options.rounds + 1):
        turns: dict[str, Turn] = {}
        for place in range(len(CONTESTANTS)):
            contestant = CONTESTANTS[(number + place) % len(CONTESTANTS)]
            servers = three if contestant == "three" else [one]
            turns[contestant] = take_turn(clients, servers, (contestant, batch, options.seconds))
        rounds.append(Round(**turns))
    return rounds[1:]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for each server program and size of batches."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n", maxsplit=1)[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of each turn")
    parser.add_argument("--clients", type=int, default=4, help="client processes")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 64], help="sessions in a batch")
    options = parser.parse_args(arguments)
    for name, program in server_programs().items():
        table = Table("", *COLUMNS, title=f"{name}: medians, and the range of {options.rounds} rounds", box=SIMPLE_HEAD)
        with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
            (Path(directory) / "one").mkdir()
            one = stack.enter_context(running(RedisServer(program, Path(directory) / "one")))
            cluster = stack.enter_context(running_cluster(program, Path(directory), node_timeout=15.0))
            fill(RedisStore(RedisSettings(one.url, timeout_seconds=30.0), "model", LIMITS))
            fill(RedisStore(RedisSettings(cluster.url, timeout_seconds=30.0, cluster=True), "model", LIMITS))
            clients = [_start(stack, one.port, cluster.url, seed) for seed in range(options.clients)]
            for batch in options.batches:
                rounds = measure(clients, one, cluster.servers, batch, options)
                table.add_row("", f"{batch}", *map(_summary, zip(*(one.ratios() for one in rounds), strict=True)))
        Console(width=150).print(table)


def _start(stack: ExitStack, port: int, cluster: str, seed: int) -> Connection:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=client, args=(theirs, port, cluster, seed), daemon=True)
    process.start()
    stack.callback(process.join, 30)
    stack.callback(ours.send, None)
    return ours


def _summary(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
