"""`make chaos`: sessions continue after any process is killed.

Many clients send their sessions chunk by chunk while a random worker is killed every 2 seconds, and once a whole
server. The first trial has one server that keeps sessions on its disk and is started again. The second has two servers
that share a Redis server, which is paused now and then; one of the two is not started again. The third is like the
first, and the disk of the sessions is full or read-only now and then, the wall clock jumps by an hour, and the file of
the sessions is truncated once: a session that is told so begins again. Every answer is compared with the model in eager
mode. Run from the repository's root: `python -m chaos`. Exits 1 if a session was lost, an answer is wrong, or fewer
processes were killed than required.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from redis_server import RedisServer, running, server_programs
from torchserve_process import DidNotStart

from .archive import make_archive, make_model
from .disturbances import Disturbance, Disturber, HostFaults, redis_pause
from .expected import Expected, expect
from .host import Host
from .model import TOKENS, Tagger
from .report import conclusion, table
from .script import Script, draw_scripts
from .tally import Tally, failures
from .trial import Trouble, run_trial

Sessions = Sequence[tuple[Script, Expected]]
TRIALS = ("disk", "redis", "disturbed")


def main() -> int:
    """Package, serve, kill, compare and report. Returns the exit code."""
    options = _options()
    # several processes compute at once: threads that spin while they wait would take their cores
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    began = time.monotonic()
    model = make_model()
    scripts = draw_scripts(options.sessions, options.chunks, TOKENS, options.seed)
    sessions = [(script, expect(model, script)) for script in scripts]
    tallies: dict[str, Tally] = {}
    wrong: list[str] = []
    for name in options.trial or TRIALS:
        with _hosts(name, model, options.workers) as (hosts, disturbances):
            disturber = Disturber(disturbances)
            trouble = Trouble(options.kill_seconds, len(hosts) == 1, options.hang_ups, options.seed, disturber)
            tallies[name] = asyncio.run(run_trial(model, sessions, hosts, trouble))
        found = failures(tallies[name], options.sessions, options.chunks, options.kills, 1, disturbances)
        wrong += [f"{name}: {line}" for line in found]
    Console().print(table(tallies))
    print(conclusion(wrong, time.monotonic() - began))
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200, help="sessions at once (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=100, help="chunks of each session (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="workers of all servers together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--kill-seconds", type=float, default=2.0, help="seconds between two kills (default: %(default)s)"
    )
    parser.add_argument("--kills", type=int, default=5, help="killed workers needed in a trial (default: %(default)s)")
    parser.add_argument("--hang-ups", type=float, default=0.02, metavar="SHARE",
                        help="share of chunks whose client hangs up early (default: %(default)s)")  # fmt: skip
    parser.add_argument("--trial", choices=TRIALS, action="append", help="only this trial; may be repeated")
    return parser.parse_args()


@contextmanager
def _hosts(name: str, model: Tagger, workers: int) -> Iterator[tuple[list[Host], Mapping[str, Disturbance]]]:
    """The started servers of a trial, and their disturbances."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        setting = _SETTINGS[name](stack, work)
        count = setting.servers
        make_archive(model, work, workers // count, setting.streaming)
        environment = {"NEURON_LSTM_SESSIONS": str(work / "sessions"), **setting.environment}
        hosts = [stack.enter_context(closing(Host(work, environment))) for _ in range(count)]
        for host in hosts:
            host.start()
        yield hosts, setting.disturbances


@dataclass(frozen=True)
class Setting:
    """The settings of a trial: the served archive, the servers and their disturbances."""

    streaming: str
    """The archive's `streaming:` block."""
    servers: int
    environment: Mapping[str, str] = field(default_factory=dict)
    disturbances: Mapping[str, Disturbance] = field(default_factory=dict)


def _on_disk(stack: ExitStack, work: Path) -> Setting:
    return Setting("{}", 1)


def _disturbed(stack: ExitStack, work: Path) -> Setting:
    faults = HostFaults(work, work / "sessions")
    return Setting("{}", 1, faults.environment(), faults.disturbances())


def _on_redis(stack: ExitStack, work: Path) -> Setting:
    (program, *_) = server_programs().values()
    server = stack.enter_context(running(RedisServer(program, work)))
    streaming = f"{{store: redis, redis: {{url: '{server.url}'}}}}"
    return Setting(streaming, 2, {}, redis_pause(server.pid))


_SETTINGS: dict[str, Callable[[ExitStack, Path], Setting]] = {
    "disk": _on_disk,
    "redis": _on_redis,
    "disturbed": _disturbed,
}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DidNotStart as failed:
        sys.exit(f"the trial failed: {failed}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"the trial failed: {failed}\n{failed.output}")
