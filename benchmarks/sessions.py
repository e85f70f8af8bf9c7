"""Cost of keeping sessions, for each batch: 32 of many sessions are read and written.

Each store is measured with one process and with several.

Run from the repository's root: `python -m benchmarks.sessions [--sessions 10000] [--batches 400] [--workers 1 4]`.

Each batch reads random sessions and writes them back, as a worker does for each chunk. The file is below `--directory`,
and the servers keep their log there too, so that all stores write to the same disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from redis_server import RedisServer, running, server_programs

from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.session import Reply, Session, decode_session, encode_session
from torchserve_neuron_lstm.sessions.settings import Limits, RedisSettings
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate, Store, StoredRecord, Written

BATCH = 32
STATE_BYTES = 4096
REPLY_BYTES = 1024
WARM_UP = 10
LIMITS = Limits(sessions=1_000_000, bytes=1 << 40, idle_seconds=3600.0)
RECORD = encode_session(
    Session(20, 10, bytes(16), Reply(random.randbytes(REPLY_BYTES), "application/json"), bytes(STATE_BYTES), bytes(16))
)

Opened = Callable[[], Store]


@dataclass(frozen=True)
class Times:
    """Milliseconds of every batch of one worker."""

    read: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)
    conflicts: list[int] = field(default_factory=list)
    """Sessions that another worker wrote first."""

    @property
    def both(self) -> list[float]:
        """Return the seconds of a batch, reading and writing."""
        return [read + write for read, write in zip(self.read, self.write, strict=True)]


def fill(store: Store, sessions: int) -> None:
    """Write `sessions` sessions, all of the same size."""
    for begin in range(0, sessions, 200):
        names = range(begin, min(begin + 200, sessions))
        outcomes = store.write([RecordUpdate(f"session-{name}", RECORD, None) for name in names])
        assert all(outcome == Written() for outcome in outcomes)


def run_batches(opened: Opened, sessions: int, batches: int, seed: int) -> Times:
    """Run the batches of one worker."""
    store, choice = opened(), random.Random(seed)
    times = Times()
    for number in range(batches + WARM_UP):
        names = [f"session-{name}" for name in choice.sample(range(sessions), BATCH)]
        began = time.perf_counter()
        found = [one for one in store.read(names) if isinstance(one, StoredRecord)]
        kept = [decode_session(one.record) for one in found]
        middle = time.perf_counter()
        changes = [
            RecordUpdate(name, encode_session(session), one.revision)
            for name, one, session in zip(names, found, kept, strict=True)
        ]
        outcomes = store.write(changes)
        ended = time.perf_counter()
        if number >= WARM_UP:
            times.read.append(1000 * (middle - began))
            times.write.append(1000 * (ended - middle))
            times.conflicts.append(sum(outcome != Written() for outcome in outcomes))
    return times


def measure(opened: Opened, sessions: int, batches: int, workers: int) -> list[Times]:
    """Measure all workers, which run at once."""
    if workers == 1:
        return [run_batches(opened, sessions, batches, 0)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.starmap(run_batches, [(opened, sessions, batches, seed) for seed in range(workers)], chunksize=1)


@contextmanager
def stores(directory: Path) -> Iterator[dict[str, Opened]]:
    """Every store, by its name."""
    with ExitStack() as servers:
        made: dict[str, Opened] = {"disk": partial(SqliteStore, directory / "disk", "model", LIMITS)}
        for name, program in server_programs().items():
            (directory / name).mkdir()
            server = servers.enter_context(running(RedisServer(program, directory / name, "--appendonly", "yes")))
            made[name] = partial(RedisStore, RedisSettings(server.url), "model", LIMITS)
        yield made


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for each store and number of workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args(arguments)
    table = Table(
        "store", "workers", "read", "write", "both", "p99", "longest", "per second", "lost races",
        title=f"{BATCH} of {options.sessions} sessions of {len(RECORD)} bytes: median milliseconds", box=SIMPLE_HEAD,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.directory) as directory, stores(Path(directory)) as opened:
        for name, store in opened.items():
            fill(store(), options.sessions)
            for workers in options.workers:
                times = measure(store, options.sessions, options.batches, workers)
                table.add_row(name, f"{workers}", *_summary(times), f"{_rate(times):.0f}", f"{_conflicts(times)}")
    Console().print(table)


def _summary(times: list[Times]) -> list[str]:
    both = [one for worker in times for one in worker.both]
    reads = [one for worker in times for one in worker.read]
    writes = [one for worker in times for one in worker.write]
    values = [median(reads), median(writes), median(both), quantiles(both, n=100, method="inclusive")[-1], max(both)]
    return [f"{value:.2f}" for value in values]


def _rate(times: list[Times]) -> float:
    """Batches of all workers together, per second."""
    return sum(1000 * len(worker.both) / sum(worker.both) for worker in times)


def _conflicts(times: list[Times]) -> int:
    return sum(sum(worker.conflicts) for worker in times)


if __name__ == "__main__":
    main()
