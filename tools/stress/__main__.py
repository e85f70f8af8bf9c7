"""`make stress`: sessions and requests under load, with or without faults.

With faults (`FAULTS=yes`), sessions go on while a random worker is killed every 2 seconds and once a whole server, in
three trials: one server with sessions on its disk; two servers that share a Redis server, which is paused now and then;
and one server whose disk is full or read-only now and then, whose wall clock jumps by an hour, and whose file of
sessions is truncated once. On a Ray cluster (`HOSTS=ray`), replicas, nodes and a Redis primary are killed. No session
may be lost, no answer wrong, no chunk applied twice.

Without faults (`FAULTS=no MINUTES=30`) there are also whole sequences, and every tenth request is bad. Every good
request must be answered the first time, every bad one refused as documented; no worker may be replaced, and its memory,
descriptors and threads must stay as they are after the warm-up.

Every answer is compared with the model in eager mode. Exits 1 if any of it does not hold; the last lines name it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from redis_server import RedisServer, running, server_programs
from torchserve_process import DidNotStart

from ..bench.harness import BenchmarkFailed
from ..bench.report import Result, Row, Table, text_of
from . import faults
from .bad_requests import KINDS, STREAM, TAGGER
from .checks import Law, Reading, Tally, answer_laws, process_laws, read_process
from .hosts import Host, make_archive, make_model
from .model import Tagger
from .traffic import draw_traffic, send

TRIALS = ("disk", "redis", "disturbed")
Trial = Callable[[Tagger, argparse.Namespace, float], tuple[list[Law], Tally]]


def main() -> int:
    """Package, serve, load, judge and report. Returns the exit code."""
    options = _options()
    # several processes compute at once: threads that spin while they wait would take their cores
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    model, seconds = make_model(), 60 * options.minutes
    trials: dict[str, Trial] = {"load": calm}
    if options.faults == "yes":
        trials = {name: partial(trial, name) for name in options.trial or TRIALS}
    if options.hosts == "ray":
        from .cluster import run_cluster

        trials = {"Ray": run_cluster}
    broken = []
    for name, run in trials.items():
        laws, tally = run(model, options, seconds / len(trials))
        show(name, laws, tally)
        broken += [*tally.lines, *(f"{name}: {law}" for law in laws if not law.holds)]
    print("\n".join(broken) or "every law holds")
    return 1 if broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.stress", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", choices=("yes", "no"), default="yes", help="(default: %(default)s)")
    parser.add_argument("--hosts", choices=("torchserve", "ray"), default="torchserve", help="(default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of all trials together (default: %(default)s)")
    parser.add_argument("--clients", type=int, help="clients at once (default: 200, without faults 32)")
    parser.add_argument("--chunks", type=int, default=50, help="chunks of a session (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="workers with sessions (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of the archives (default: %(default)s)")
    parser.add_argument("--trial", choices=TRIALS, action="append", help="only this trial with faults; may be repeated")
    parser.add_argument("--kill-seconds", type=float, default=2.0, help="between two kills (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="workers or replicas to kill (default: %(default)s)")
    parser.add_argument("--hang-ups", type=float, default=0.02, help="share of chunks (default: %(default)s)")
    options = parser.parse_args()
    if options.hosts == "ray" and options.faults == "no":
        parser.error("on a Ray cluster there are always faults: leave out FAULTS=no")
    return options


def trial(name: str, model: Tagger, options: argparse.Namespace, seconds: float) -> tuple[list[Law], Tally]:
    """Send sessions while servers are killed and disturbed, until there were enough faults."""
    chance, tally = random.Random(0), Tally()
    traffic = draw_traffic(
        model, options.chunks, chance, faults=True, patience=120.0, hang_ups=options.hang_ups, answer_seconds=15.0
    )
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stress-")))
        environment = {"NEURON_LSTM_SESSIONS": str(work / "sessions")}
        streaming, count, disturbances = "{}", 1, dict[str, faults.Disturbance]()
        if name == "redis":
            (program, *_) = server_programs().values()
            redis = stack.enter_context(running(RedisServer(program, work)))
            streaming, count = f"{{store: redis, redis: {{url: '{redis.url}'}}}}", 2
            disturbances = faults.redis_pause(redis.pid)
        if name == "disturbed":
            of_host = faults.HostFaults(work, work / "sessions")
            environment, disturbances = {**environment, **of_host.environment()}, of_host.disturbances()
        make_archive(model, work, STREAM, max(1, options.workers // count), options.backend, streaming)
        hosts = [stack.enter_context(closing(Host(work, [STREAM], environment))) for _ in range(count)]
        for host in hosts:
            host.start()
        needed = {faults.WORKERS: options.kills, faults.SERVERS: 1, **dict.fromkeys(disturbances, 1)}
        goes_on = faults.until_enough(tally, needed, seconds)
        beside = (
            faults.kill_workers(hosts, tally, options.kill_seconds, chance),
            faults.kill_server(hosts[0], tally, seconds / 2, restart=len(hosts) == 1),
            faults.disturb(disturbances, tally),
        )
        asyncio.run(send(traffic, [host.port for host in hosts], options.clients or 200, tally, goes_on, *beside))
    return [*answer_laws(tally, (), needed)], tally


def calm(model: Tagger, options: argparse.Namespace, seconds: float) -> tuple[list[Law], Tally]:
    """Send good and bad requests without faults, and read every worker."""
    tally = Tally()
    traffic = draw_traffic(model, 12, random.Random(0), faults=False)
    with tempfile.TemporaryDirectory(prefix="stress-") as folder:
        work = Path(folder)
        make_archive(model, work, TAGGER, 1, options.backend)
        # sessions whose client hung up expire during the warm-up of a long run, so their number soon stays the same
        make_archive(model, work, STREAM, 1, options.backend, "{idle_seconds: 60, confirm_seconds: 60}")
        with closing(Host(work, [TAGGER, STREAM], {"NEURON_LSTM_SESSIONS": str(work / "sessions")})) as host:
            host.start()
            before = host.workers()
            readings: dict[str, list[Reading]] = {name: [] for name in before}
            goes_on = faults.until_enough(tally, {}, seconds)
            reader = read_workers(before, readings, seconds)
            asyncio.run(send(traffic, [host.port], options.clients or 32, tally, goes_on, reader))
            after = host.workers()
    laws = [*answer_laws(tally, KINDS, {}), Law("workers", len(before), least=2)]
    laws.append(Law("workers that were replaced", len(set(before.values()) - set(after.values())), most=0))
    return [*laws, *(law for name, read in readings.items() for law in process_laws(name, read, seconds))], tally


async def read_workers(pids: Mapping[str, int], readings: Mapping[str, list[Reading]], seconds: float) -> None:
    """Read every worker until the end of the run; one that has ended has no further readings."""
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        for name, pid in pids.items():
            reading = read_process(pid, elapsed)
            readings[name].extend([] if reading is None else [reading])
        await asyncio.sleep(min(1.0, seconds / 600))


def show(name: str, laws: Sequence[Law], tally: Tally) -> None:
    """Print what was sent, and how each law stands."""
    counts = {"requests": tally.sent, "sessions begun": tally.sessions_begun, "sessions begun again": tally.begun_again}
    counts |= {f"sent again: {why}": count for why, count in tally.again.items()}
    rows = [Row(what, "", {"measured": f"{count:,}"}) for what, count in counts.items()]
    for law in laws:
        figures = {"measured": f"{law.value:.4g}", "bound": law.bound, "holds": "yes" if law.holds else "**no**"}
        rows.append(Row(law.what, "", figures))
    print(text_of(Result([Table(f"Stress: {name}", rows)])))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BenchmarkFailed, DidNotStart) as failed:
        sys.exit(f"the run failed: {failed}")
