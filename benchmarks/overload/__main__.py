"""Deadlines under three times the load that a host can take.

Clients send requests at a fixed rate, each with an absolute deadline (`X-Request-Deadline-Ms`). What is answered late,
and how much is still answered beside the rate without overload? Run from the repository's root:
`python -m benchmarks.overload`; about a minute. Exits 1 if a floor is missed; the last lines name it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from statistics import median

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from torchserve_process import serving

from ..load import http_post, load
from ..ragged.cases import log_normal
from ..rest.archives import LONGEST, OURS, make_archives, make_model
from ..standing import Standing, missed, standings_json, standings_table
from .open_loop import Answered, send_at_rate

SEQUENCES = 4
"""Sequences of one request, so that the computation costs more than TorchServe."""
REQUESTS = 64
TOKENS = 10_000
BATCH = 4
SOME = 200
"""Requests per second, assumed for the first queue."""


@dataclass(frozen=True)
class Overload:
    """Figures of one run."""

    deadline_ms: float
    capacity: float
    """Requests per second, answered to clients that wait for each response."""
    batch_ms: float
    """Milliseconds of a full batch: `BATCH` times the median response of a single client."""
    offered: float
    """Requests per second under overload."""
    statuses: dict[int, int]
    answered: float
    """Responses 200 per second under overload."""
    latest_ms: float
    """Milliseconds from its deadline to the latest response, of any status; negative: none was late."""
    late_200: float
    """Share of the responses 200 that came after their deadline."""


def main() -> int:
    """Serve, load, overload and report. Returns the exit code."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="overload-") as folder:
        store = Path(folder)
        make_archives(make_model(), store, 1, BATCH, 1, options.backend, (OURS,))
        queue = ceil(options.deadline_ms * SOME / 1000) + BATCH
        with serving(store, {OURS: f"{OURS}.mar"}, settings={"job_queue_size": str(queue)}) as server:
            found = measure(server.inference, options.deadline_ms, options.times, options.seconds)
    standing = standings(found)
    Console().print(standings_table(standing))
    print(json.dumps(asdict(found), indent=2))
    if options.json:
        figures = {**asdict(found), "floors": standings_json(standing)}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    lines = missed(standing)
    print("\n".join(lines) or "every floor holds")
    return 1 if lines else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--deadline-ms", type=float, default=50.0, help="of each request (default: %(default)s)")
    parser.add_argument("--times", type=float, default=3.0, help="the rate without overload (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of the archive (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def measure(port: int, deadline_ms: float, times: float, seconds: float) -> Overload:
    """Load the server with clients that wait, then with clients that do not."""
    bodies = draw_bodies()
    path = f"/predictions/{OURS}"
    requests = [http_post(path, body) for body in bodies]
    load(port, requests, 2 * BATCH, seconds / 2)
    alone = load(port, requests, 1, seconds / 2)
    full = load(port, requests, 2 * BATCH, seconds)
    capacity = len(full.milliseconds) / full.seconds

    def draw(now: float) -> bytes:
        headers = {"X-Request-Deadline-Ms": str(round(1000 * now + deadline_ms))}
        return http_post(path, random.choice(bodies), headers=headers)

    answered = send_at_rate(port, draw, times * capacity, seconds)
    return summarise(answered, deadline_ms, capacity, BATCH * median(alone.milliseconds), times * capacity, seconds)


def draw_bodies() -> list[bytes]:
    """Requests of four sequences of log-normal lengths each. Always the same."""
    generator = random.Random(0)
    lengths = iter(log_normal(SEQUENCES * REQUESTS, generator, LONGEST))
    drawn = [
        [[generator.randrange(TOKENS) for _ in range(next(lengths))] for _ in range(SEQUENCES)] for _ in range(REQUESTS)
    ]
    return [json.dumps({"instances": instances}).encode() for instances in drawn]


def summarise(
    answered: Sequence[Answered], deadline_ms: float, capacity: float, batch_ms: float, offered: float, seconds: float
) -> Overload:
    """Count responses, and find the latest."""
    late = [(1000 * (one.received - one.sent) - deadline_ms, one.status) for one in answered]
    good = [lateness for lateness, status in late if status == 200]
    return Overload(
        deadline_ms,
        capacity,
        batch_ms,
        offered,
        dict(Counter(status for _, status in late)),
        len(good) / seconds,
        max(lateness for lateness, _ in late),
        sum(lateness > 0 for lateness in good) / max(1, len(good)),
    )


def standings(found: Overload) -> list[Standing]:
    """The floors: nobody is answered later than a deadline and one call, little is computed for nothing."""
    lost = found.statuses.get(0, 0)
    return [
        Standing("answered per second under overload, of the rate without", found.answered / found.capacity, 0.9, 1.0),
        Standing("latest response after its deadline, in batches", found.latest_ms / found.batch_ms, 1.0, 0.0, "less"),
        Standing("requests without a response", lost, 0, 0, "less"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
