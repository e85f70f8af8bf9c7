"""`make soak`: a server under full load for half an hour, where every tenth request is bad.

One TorchServe has two archives: a model of whole sequences, and one with sessions on disk. Every good request must be
answered as the model in eager mode does, every bad one must be refused as documented, no worker may be replaced, and
memory, open descriptors and threads of every worker must stay as they are after the warm-up (half of the run, at
most 5 minutes). Run from the repository's root: `python -m soak`. Exits 1 if any of it does not hold; the last lines
name it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from chaos.archive import make_model
from chaos.expected import expect
from chaos.model import TOKENS, Tagger
from chaos.script import draw_scripts
from torchserve_process import DidNotStart, TorchServe, serving

from torchserve_neuron_lstm.archiver_ext.progress import show_progress

from .archives import STREAM, TAGGER, make_archives
from .client import KINDS, Supply
from .good_requests import draw_sentences
from .load import Observed, run_load
from .readings import parent
from .report import figures, kind_table, process_table
from .standing import Standing, missed, standings_table
from .steadiness import process_standings
from .tally import Tally, answer_standings
from .workers import replaced_standing, worker_pids

_MODELS = (TAGGER, STREAM)
_SERVER = "java"
"""The name of the server's own process, which is read and not judged."""
_SENTENCES, _SESSIONS, _CHUNKS = 256, 64, 12
_PROGRESS_SECONDS = 30.0


def main() -> int:
    """Package, serve, load, judge and report. Returns the exit code."""
    options = _options()
    # several processes compute at once: threads that spin while they wait would take their cores
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    model = make_model()
    with tempfile.TemporaryDirectory(prefix="soak-") as work:
        make_archives(model, Path(work), options.workers, options.backend)
        with _serve(Path(work)) as server:
            before = worker_pids(server, _MODELS)
            observed = _load_server(server, _supply(model, options.seed), options, before)
            after = worker_pids(server, _MODELS)
    found = standings(observed, before, after, options.minutes * 60)
    _print(observed, found, options.minutes * 60)
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        options.json.write_text(json.dumps(figures(observed, found, settings), indent=2) + "\n")
    lines = missed(found)
    print("\n".join([*observed.tally.wrong, *lines]) or "every property holds")
    return 1 if lines else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=_minutes, default=30.0, help="minutes of load (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=32, help="clients at once (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="workers of each model (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of both archives (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"expected minutes above 0, such as 30 or 0.5, got {text!r}")
    return minutes


def _serve(work: Path) -> AbstractContextManager[TorchServe]:
    shutil.copy(Path(__file__).with_name("log4j2.xml"), work)
    settings = {"job_queue_size": "1000", "vmargs": f"-Dlog4j.configurationFile=file://{work}/log4j2.xml"}
    environment = {"NEURON_LSTM_SESSIONS": str(work / "sessions")}
    return serving(work, {name: f"{name}.mar" for name in _MODELS}, settings=settings, environment=environment)


def _supply(model: Tagger, seed: int) -> Supply:
    scripts = draw_scripts(_SESSIONS, _CHUNKS, TOKENS, seed)
    return Supply(
        model=model,
        sentences=draw_sentences(model, _SENTENCES, random.Random(seed)),
        sessions=[(script, expect(model, script)) for script in scripts],
        kinds=cycle(KINDS),
    )


def _load_server(
    server: TorchServe, supply: Supply, options: argparse.Namespace, workers: Mapping[str, int]
) -> Observed:
    seconds = options.minutes * 60
    processes = {**workers, _SERVER: parent(next(iter(workers.values())))}
    with show_progress("soak", Console(stderr=True), _PROGRESS_SECONDS) as progress:

        def told(elapsed: float, tally: Tally) -> None:
            progress(
                round(elapsed), round(seconds), f"{tally.sent:,} requests, {tally.failed:,} answers wrong or missing"
            )

        return asyncio.run(run_load(server.inference, supply, options.clients, seconds, processes, told))


def standings(
    observed: Observed, before: Mapping[str, int], after: Mapping[str, int], seconds: float
) -> list[Standing]:
    """The standings of a whole run; `before` and `after` it are the process ids of the workers by name."""
    found = [*answer_standings(observed.tally, KINDS), replaced_standing(before, after)]
    for name in before:
        found += process_standings(name, observed.readings[name], seconds)
    return found


def _print(observed: Observed, found: Sequence[Standing], seconds: float) -> None:
    console = Console()
    console.print(kind_table(observed, KINDS))
    console.print(process_table(observed.readings, seconds))
    console.print(standings_table(found))
    console.print(f"{observed.tally.sent:,} requests in {observed.seconds:.0f} s", highlight=False)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DidNotStart as failed:
        sys.exit(f"the soak failed: {failed}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"the soak failed: {failed}\n{failed.output}")
