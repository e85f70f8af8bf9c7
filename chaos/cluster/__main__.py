"""`make chaos-cluster`: sessions go on while a Ray cluster and its Redis cluster lose processes.

Three nodes, each a raylet of this machine, have replicas of one archive, whose sessions are on a Redis cluster of three
primaries with one replica each. Clients send their sessions chunk by chunk, and a chunk without an answer again, while
replicas are killed, nodes are removed without warning, and a primary of Redis is killed. Then a second application gets
new weights under load. Every answer is compared with the model in eager mode. Run from the repository's root by the
environment of `make test-hosts`: `.hosts/bin/python -m chaos.cluster`. Exits 1 if a session was lost, an answer is
wrong, a chunk was applied twice, a request was refused during the update, or too little was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from redis_cluster import LocalCluster, running_cluster
from redis_server import server_programs

from torchserve_neuron_lstm.archiver_ext.progress import ProgressCallback, show_progress

from ..archive import NAME, make_archive, make_model
from ..expected import expect
from ..model import TOKENS, Tagger
from ..report import conclusion
from ..script import draw_scripts
from ..tally import Tally
from .kinds import Kind
from .load import run_load
from .outcome import LEAST, Outcome
from .raylets import RayNodes, running_nodes
from .rolling_update import Update, questions, update_under_load
from .trouble import ClusterTrouble

_NODES = 3
_REPLICAS = 3
_QUESTIONS = 50
_FAILOVER_SECONDS = 5.0
"""A primary that does not answer for so long is replaced: longer than a busy machine holds it up."""
_PROGRESS_SECONDS = 10.0


def main() -> int:
    """Package, serve, disturb, update, compare and report. Returns the exit code."""
    options = _options()
    # several processes compute at once: threads that spin while they wait would take their cores
    os.environ.update(OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    began = time.monotonic()
    least = {**LEAST, Kind.REPLICA: options.kills}
    with (
        tempfile.TemporaryDirectory(prefix="cc-", ignore_cleanup_errors=True) as folder,
        redirect_stdout(sys.stderr),  # Ray tells there what died
    ):
        outcome = _run(options, Path(folder), least)
    wrong = outcome.failures(least)
    if options.json:
        retries = dict(outcome.tally.retries.most_common())
        print(json.dumps({**outcome.figures(), "sent again because": retries, "failures": wrong}, indent=2))
    else:
        Console().print(outcome.table())
        print(conclusion(wrong, time.monotonic() - began))
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos.cluster", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200, help="sessions at once (default: %(default)s)")
    parser.add_argument("--chunks", type=int, default=100, help="chunks of each session (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--kills", type=int, default=LEAST[Kind.REPLICA], help="replicas to kill (default: %(default)s)"
    )
    parser.add_argument("--hang-ups", type=float, default=0.02, metavar="SHARE",
                        help="share of chunks whose client hangs up early (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


def _run(options: argparse.Namespace, work: Path, least: Mapping[Kind, int]) -> Outcome:
    redis_folder, ray_folder = _folders(work, "redis", "ray")
    program = server_programs()["redis-server"]
    with (
        show_progress("chaos", Console(stderr=True), _PROGRESS_SECONDS) as progress,
        running_cluster(program, redis_folder, replicas=1, node_timeout=_FAILOVER_SECONDS) as redis,
        running_nodes(_NODES, ray_folder) as nodes,
    ):
        tally, begun = _run_sessions(options, work, nodes, redis, least, progress)
        return Outcome(tally, begun, options.chunks, _update_weights(options, work, nodes, progress))


def _run_sessions(
    options: argparse.Namespace,
    work: Path,
    nodes: RayNodes,
    redis: LocalCluster,
    least: Mapping[Kind, int],
    progress: ProgressCallback,
) -> tuple[Tally, int]:
    """Send the sessions while replicas, nodes and a primary are killed."""
    model = make_model()
    redis_settings = f"{{url: '{redis.url}', cluster: true, replicas: 1, timeout_seconds: 3.0}}"
    archive = _package(model, work, "sessions", f"{{store: redis, redis: {redis_settings}}}")
    nodes.deploy({"archive": str(archive), "threads": 1, "replicas": _REPLICAS}, "sessions", "/")
    scripts = draw_scripts(options.sessions, options.chunks, TOKENS, options.seed)
    sessions = [(script, expect(model, script)) for script in scripts]
    answers = options.sessions * options.chunks
    trouble = ClusterTrouble(nodes, redis, least, answers, random.Random(options.seed))

    def told(tally: Tally) -> None:
        made = ", ".join(f"{trouble.made[kind]} {kind.value}" for kind in Kind)
        progress(tally.given, max(answers, tally.given), f"answers; {made}")

    tally, begun = asyncio.run(run_load(model, sessions, nodes.http, options.hang_ups, trouble, told))
    tally.disturbances.update({kind.value: count for kind, count in trouble.made.items()})
    nodes.delete("sessions")
    return tally, begun


def _update_weights(options: argparse.Namespace, work: Path, nodes: RayNodes, progress: ProgressCallback) -> Update:
    """Change the weights of a model without sessions while clients ask."""
    old, new = make_model(), _with_other_weights(make_model())
    paths = [str(_package(model, work, name, None)) for model, name in ((old, "old"), (new, "new"))]
    before, after = ({"archives": {NAME: path}, "threads": 1, "replicas": _REPLICAS} for path in paths)
    nodes.deploy(before, "weights", "/")
    texts = [script.tokens for script in draw_scripts(_QUESTIONS, 1, TOKENS, options.seed)]
    return asyncio.run(
        update_under_load(
            nodes.http,
            f"/predictions/{NAME}",
            questions(old, new, texts),
            lambda: nodes.deploy(after, "weights", "/"),
            lambda given: progress(given, given, "answers while the weights change"),
        )
    )


@torch.no_grad()
def _with_other_weights(model: Tagger) -> Tagger:
    for weight in model.parameters():
        weight.add_(0.25)
    return model


def _package(model: Tagger, work: Path, name: str, streaming: str | None) -> Path:
    """Package the model by the standard command; returns the path of the archive."""
    (folder,) = _folders(work, name)
    make_archive(model, folder, 1, streaming)
    return folder / f"{NAME}.mar"


def _folders(work: Path, *names: str) -> list[Path]:
    folders = [work / name for name in names]
    for folder in folders:
        folder.mkdir()
    return folders


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failed:
        sys.exit(f"the run failed: {failed}\n{failed.output}")
