"""Deadlines under three times the load that a host can take.

Clients send requests at a fixed rate, each with an absolute deadline (`X-Request-Deadline-Ms`). The benchmark measures
how late responses are, and the rate of answers compared with that without overload. The latter is measured first, and
TorchServe's queue size follows from it, as `docs/requests.md` says. The engine has one core less than the host, for
TorchServe and the clients: otherwise their work for refused requests would take time from the engine. Run from the
repository's root: `python -m benchmarks.overload`; about a minute. Exits 1 if a floor is missed; the last lines name
it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from torchserve_process import TorchServe, serving

from ..load import http_post, load
from ..ragged.cases import log_normal
from ..rest.archives import LONGEST, OURS, make_archives, make_model
from ..standing import Standing, conclude, standings_json, standings_table, write_figures
from .open_loop import Answered, send_at_rate

SEQUENCES = 16
"""Sequences of one request, so that the computation costs more than TorchServe."""
REQUESTS = 64
TOKENS = 10_000
BATCH = 1
LARGE_QUEUE = 1000
"""Requests that may wait while the rate is measured."""


_PATH = f"/predictions/{OURS}"


@dataclass(frozen=True)
class Round:
    """Figures of one load without overload, and of one with it."""

    capacity: float
    """Requests per second, answered to clients that wait for each response."""
    batch_ms: float
    """Milliseconds of a full batch: `BATCH` times the median response of a single client."""
    offered: float
    """Requests per second under overload."""
    statuses: dict[int, int]
    answered: float
    """Responses 200 per second under overload."""
    latest_ms: dict[int, float]
    """Milliseconds from its deadline to the latest response of each status; negative: none was late."""
    late_200: float
    """Share of the responses 200 that came after their deadline."""


def main() -> int:
    """Serve, overload and report. Returns the exit code."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="overload-") as folder:
        store = Path(folder)
        threads = max(1, len(os.sched_getaffinity(0)) - 1)
        make_archives(make_model(), store, 1, BATCH, 1, options.backend, (OURS,), threads)
        with _served(store, LARGE_QUEUE) as unloaded:
            capacity, _ = measure_capacity(unloaded.inference, options.seconds)
            with _served(store, queue_size(options.deadline_ms, capacity)) as overloaded:
                rounds = [measure_round(unloaded, overloaded, options) for _ in range(options.rounds)]
    standing = standings(rounds)
    Console().print(standings_table(standing))
    figures = {"rounds": [asdict(one) for one in rounds], "floors": standings_json(standing)}
    print(json.dumps(figures["rounds"], indent=2))
    write_figures(figures, options.json)
    return conclude(standing)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument(
        "--deadline-ms", type=float, default=50.0, help="deadline of each request (default: %(default)s)"
    )
    parser.add_argument(
        "--times",
        type=float,
        default=3.0,
        help="load, as a multiple of the rate without overload (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each load (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both loads (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of the archive (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def _served(store: Path, queue: int) -> AbstractContextManager[TorchServe]:
    # The collector of the host's own metrics is a process that takes a core for a second.
    settings = {"job_queue_size": str(queue), "metric_time_interval": "3600"}
    return serving(store, {OURS: f"{OURS}.mar"}, settings=settings)


def queue_size(deadline_ms: float, per_second: float) -> int:
    """Requests that may wait, so that the last is answered in time, behind a batch in work.

    >>> queue_size(50.0, 200.0)
    6
    """
    return max(1, int(deadline_ms * per_second / 1000) - 2 * BATCH)


def measure_capacity(port: int, seconds: float) -> tuple[float, float]:
    """Load the server with clients that wait; requests per second, and milliseconds of a full batch."""
    requests = [http_post(_PATH, body) for body in draw_bodies()]
    load(port, requests, 2 * BATCH, seconds / 4)
    alone = load(port, requests, 1, seconds / 4)
    full = load(port, requests, 2 * BATCH, seconds)
    return len(full.milliseconds) / full.seconds, BATCH * median(alone.milliseconds)


def measure_round(unloaded: TorchServe, overloaded: TorchServe, options: argparse.Namespace) -> Round:
    """Load one server with clients that wait, then the other one with clients that do not."""
    capacity, batch_ms = measure_capacity(unloaded.inference, options.seconds)
    bodies = draw_bodies()
    load(overloaded.inference, [http_post(_PATH, body) for body in bodies], 1, options.seconds / 4)

    def draw(now: float) -> bytes:
        headers = {"X-Request-Deadline-Ms": str(round(1000 * now + options.deadline_ms))}
        return http_post(_PATH, random.choice(bodies), headers=headers)

    offered = options.times * capacity
    answered = send_at_rate(overloaded.inference, draw, offered, options.seconds)
    return summarise(answered, options.deadline_ms, capacity, batch_ms, offered, options.seconds)


def draw_bodies() -> list[bytes]:
    """Requests of several sequences of log-normal lengths each. Always the same."""
    generator = random.Random(0)
    lengths = iter(log_normal(SEQUENCES * REQUESTS, generator, LONGEST))
    drawn = [
        [[generator.randrange(TOKENS) for _ in range(next(lengths))] for _ in range(SEQUENCES)] for _ in range(REQUESTS)
    ]
    return [json.dumps({"instances": instances}).encode() for instances in drawn]


def summarise(
    answered: Sequence[Answered], deadline_ms: float, capacity: float, batch_ms: float, offered: float, seconds: float
) -> Round:
    """Count responses, and find the latest."""
    late = [(1000 * (one.received - one.sent) - deadline_ms, one.status) for one in answered]
    good = [lateness for lateness, status in late if status == 200]
    return Round(
        capacity,
        batch_ms,
        offered,
        dict(Counter(status for _, status in late)),
        len(good) / seconds,
        {kind: max(lateness for lateness, status in late if status == kind) for _, kind in late},
        sum(lateness > 0 for lateness in good) / max(1, len(good)),
    )


def standings(rounds: Sequence[Round]) -> list[Standing]:
    """The floors: no response is later than its deadline and one call, and no request is lost."""
    share = median(one.answered / one.capacity for one in rounds)
    latest = max(max(one.latest_ms.values()) / one.batch_ms for one in rounds)
    lost = sum(one.statuses.get(0, 0) for one in rounds)
    return [
        Standing("answered per second under overload, of the rate without (median)", share, 0.9, 1.0),
        Standing("latest response of all after its deadline, in batches", latest, 1.0, 0.0, "less"),
        Standing("requests without a response", lost, 0, 0, "less"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
