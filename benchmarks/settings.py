"""Effect of TorchServe's settings on one request and on many at once: the basis of `config/presets/`.

Run from the repository's root: `python -m benchmarks.settings [--rounds 8] [--seconds 1] [--backend native]
[--clients 16 64] [--stream]`. With `--stream` a request is the next timestep of one of 1000 sessions, instead of a
whole sequence.

One TorchServe serves the same model under every setting. The settings take turns, round after round, so that other load
of the machine affects all of them. Each figure is the median over the rounds, with the median of the ratios to the
first setting in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from torchserve_process import DidNotStart, TorchServe, serving

from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.config.manifest_writer import write_manifest

from .load import Refused, http_post, load, send_each
from .ragged.cases import log_normal
from .rest.model import TokenClassifier

CONFIG = """\
minWorkers: 1
maxWorkers: 1
neuron_lstm:
  inputs: {{ids: {{dtype: int64, shape: [batch, time]}}}}
  lengths: lengths
  outputs: [scores]
  buckets: {{batch: [1, 8, 32], length: [16, 64, 128, 330]}}
  backend: {backend}
  streaming: {streaming}
"""
SESSIONS = 1000
TOKENS = 10_000
LONGEST = 330
LONE_LENGTH = 20
SEQUENCES = 256
CLIENTS = (16, 64)
PATIENCE = 1.0  # seconds
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Setting:
    """A setting under which one copy of the model is served."""

    batch_size: int = 32
    delay: int = 1
    """`maxBatchDelay`, in milliseconds."""
    workers: int = CORES
    threads: int = 1
    """Number of threads of each worker."""
    passive: bool = False
    """OMP_WAIT_POLICY=passive: OpenMP's threads, which are torch's and inductor's, sleep while they wait."""

    @property
    def name(self) -> str:
        """The name under which the model is registered."""
        waiting = "-passive" if self.passive else ""
        return f"batch{self.batch_size}-delay{self.delay}-workers{self.workers}-threads{self.threads}{waiting}"


SETTINGS = tuple(
    dict.fromkeys(
        [
            Setting(),
            *(Setting(delay=delay) for delay in (2, 5, 10)),
            *(Setting(batch_size=size) for size in (1, 8, 16, 64)),
            Setting(workers=1),
            Setting(workers=1, threads=CORES),
            Setting(workers=1, threads=CORES, passive=True),
            Setting(batch_size=1, workers=1),
            Setting(batch_size=1, workers=1, threads=CORES),
        ]
    )
)
"""All settings; the others are compared with the first."""


@dataclass
class Figures:
    """Figures of one setting by round: milliseconds of a single request; rate and p99 of many."""

    lone: list[float] = field(default_factory=list)
    rates: dict[int, list[float]] = field(default_factory=dict)
    suffix_costs: dict[int, list[float]] = field(default_factory=dict)


def main() -> None:
    """Package, serve, measure and print."""
    options = _options()
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="settings-")))
        package(store, options.backend, stream=options.stream)
        settings = [setting for setting in SETTINGS if not (options.stream and setting.threads > 1)]
        waits = sorted({setting.passive for setting in settings})
        servers = {passive: stack.enter_context(started(store, passive)) for passive in waits}
        asked = {}
        for setting in settings:
            register(servers[setting.passive], setting)
            asked[setting] = ask_for(servers[setting.passive].inference, setting, stream=options.stream)
        figures = {setting: Figures() for setting in settings}
        for _ in range(options.rounds):
            for setting, own in figures.items():
                measure(servers[setting.passive].inference, asked[setting], own, options.seconds, options.clients)
    Console().print(table(figures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.settings", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="turns of each setting (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of load in a turn (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine (default: %(default)s)")
    parser.add_argument(
        "--clients",
        type=int,
        nargs="+",
        default=CLIENTS,
        metavar="N",
        help="numbers of clients at once (default: 16 64)",
    )
    parser.add_argument("--stream", action="store_true", help="steps of sessions instead of whole sequences")
    return parser.parse_args()


def package(store: Path, backend: str, *, stream: bool = False) -> None:
    """Package an archive for each number of threads, named `threads1` and so on.

    They are copies of one archive, so that all have the same costs.
    """
    shutil.copy(Path(__file__).parent / "rest" / "model.py", store)
    torch.save(TokenClassifier().state_dict(), store / "weights.pt")
    (store / "model-config.yaml").write_text(CONFIG.format(backend=backend, streaming="{}" if stream else "null"))
    what = [
        "--model-name",
        "packaged",
        "--version",
        "1.0",
        "--handler",
        "neuron_lstm",
        "--archive-format",
        "no-archive",
    ]
    files = ["--model-file", "model.py", "--serialized-file", "weights.pt", "--config-file", "model-config.yaml"]
    archiver = str(Path(sys.executable).with_name("torch-model-archiver"))
    subprocess.run([archiver, *what, *files], cwd=store, check=True, stdout=subprocess.DEVNULL)
    manifest = read_manifest(store / "packaged")
    for threads in {setting.threads for setting in SETTINGS}:
        copy = shutil.copytree(store / "packaged", store / f"threads{threads}")
        write_manifest(replace(manifest, threads=threads), copy)
        write_list(copy)


def started(store: Path, passive: bool) -> AbstractContextManager[TorchServe]:
    """A server to which models can be added; the model that it starts with gets no requests."""
    environment = {"NEURON_LSTM_SESSIONS": str(store / "sessions")}
    environment |= {"OMP_WAIT_POLICY": "passive"} if passive else {}
    settings = {"enable_model_api": "true", "job_queue_size": "1000"}
    return serving(store, {"first": f"threads{CORES}"}, settings=settings, environment=environment)


def register(server: TorchServe, setting: Setting) -> None:
    """Serve a copy of the model with these settings, which override those of the archive."""
    words = {
        "url": f"threads{setting.threads}",
        "model_name": setting.name,
        "batch_size": setting.batch_size,
        "max_batch_delay": setting.delay,
    }
    manage(server, "POST", "/models", words)
    # an archive's own setting of workers overrides that of a registration
    workers = {"min_worker": setting.workers, "max_worker": setting.workers, "synchronous": "true"}
    manage(server, "PUT", f"/models/{setting.name}", workers)
    if len(server.worker_pids(setting.name)) != setting.workers:
        raise DidNotStart(f"{setting.name} has {len(server.worker_pids(setting.name))} workers")


def manage(server: TorchServe, method: str, path: str, words: Mapping[str, object]) -> None:
    """Send one request to the management API."""
    address = f"http://127.0.0.1:{server.management}{path}?{urllib.parse.urlencode(words)}"
    with urllib.request.urlopen(urllib.request.Request(address, method=method), timeout=120) as answer:
        answer.read()


@dataclass(frozen=True)
class Asked:
    """The requests of one setting."""

    lone: bytes
    many: Sequence[bytes]


def ask_for(port: int, setting: Setting, *, stream: bool) -> Asked:
    """Whole sequences; or steps of sessions, which are opened here."""
    generator = random.Random(0)
    path = f"/predictions/{setting.name}"
    if not stream:
        lone = http_post(path, body(LONE_LENGTH, generator))
        return Asked(lone, [http_post(path, body(n, generator)) for n in log_normal(SEQUENCES, generator, LONGEST)])
    names = [{"ts_request_sequence_id": f"session-{number}"} for number in range(SESSIONS)]
    begin = {"ts_request_sequence_start": "true"}
    send_each(port, [http_post(path, body(1, generator), headers={**name, **begin}) for name in names], connections=16)
    steps = [http_post(path, body(1, generator), headers=name) for name in names]
    return Asked(steps[0], steps)


def measure(port: int, asked: Asked, figures: Figures, seconds: float, clients: Sequence[int] = CLIENTS) -> None:
    """Measure one round of one setting."""
    settle()
    lone = load(port, [asked.lone], connections=1, seconds=seconds / 2)
    figures.lone.append(median(lone.milliseconds))
    for connections in clients:
        done = load(port, asked.many, connections, seconds)
        figures.rates.setdefault(connections, []).append(len(done.milliseconds) / done.seconds)
        figures.suffix_costs.setdefault(connections, []).append(quantiles(done.milliseconds, n=100)[98])


def body(length: int, generator: random.Random) -> bytes:
    """A sequence of random tokens as JSON."""
    return json.dumps([generator.randrange(TOKENS) for _ in range(length)]).encode()


def settle() -> None:
    """Wait until the machine has no other load, or until `PATIENCE` is over."""
    deadline = time.monotonic() + PATIENCE
    while busy_share(0.2) > 0.1 and time.monotonic() < deadline:
        pass


def busy_share(seconds: float) -> float:
    """The share of all cores' time in which a process ran."""
    before = cpu_ticks()
    time.sleep(seconds)
    passed = [after - start for after, start in zip(cpu_ticks(), before, strict=True)]
    return 1 - (passed[3] + passed[4]) / max(1, sum(passed))


def cpu_ticks() -> list[int]:
    """Return the ticks of all cores since boot: user, nice, system, idle, waiting for disks, ..."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def table(figures: Mapping[Setting, Figures]) -> Table:
    """A row for each setting; beside each figure its ratio to that of the first setting."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    base = next(iter(figures.values()))
    many = [f"{connections} clients: {what}" for what in ("/s", "p99 ms") for connections in base.rates]
    for heading in ["batch", "delay", "workers", "threads", "lone ms", *many]:
        shown.add_column(heading, justify="right")
    for setting, own in figures.items():
        pairs = [(own.lone, base.lone)]
        pairs += [(own.rates[connections], base.rates[connections]) for connections in base.rates]
        pairs += [(own.suffix_costs[connections], base.suffix_costs[connections]) for connections in base.rates]
        threads = f"{setting.threads}{' passive' if setting.passive else ''}"
        shown.add_row(
            *(str(setting.batch_size), str(setting.delay), str(setting.workers), threads),
            *(f"{median(mine):.1f} x{ratio(mine, first):.2f}" for mine, first in pairs),
        )
    return shown


def ratio(mine: Sequence[float], first: Sequence[float]) -> float:
    """The median over the rounds."""
    return median(one / other for one, other in zip(mine, first, strict=True))


if __name__ == "__main__":
    try:
        main()
    except (DidNotStart, Refused, subprocess.CalledProcessError) as failed:
        sys.exit(f"the measurement failed: {failed}")
