"""`make bench-rest`: TorchServe with our archive against TorchServe with a plain pad-and-pack handler.

Two unmodified servers have the same model and the same settings. The same clients on the same machine send requests to
both in turns. Run from the repository's root: `python -m benchmarks.rest`. Exits 1 if a floor is missed; the last lines
name it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from torchserve_process import DidNotStart, TorchServe, serving

from ..load import Refused, http_post, load
from ..ragged.cases import log_normal
from ..standing import conclude, standings_json, standings_table, write_figures
from .archives import LONGEST, OURS, PLAIN, make_archives, make_model
from .model import TokenClassifier
from .results import Results, Round, print_results, standings, to_json

SEQUENCES = 512
TOKENS = 10_000
COMPARED = 64


class WrongAnswer(RuntimeError):
    """A server whose answers differ from the model's: its speed means nothing."""


def main() -> int:
    """Package, serve, compare, load and report. Returns the exit code."""
    options = _options()
    model = make_model()
    sequences = draw_sequences()
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rest-")))
        make_archives(model, store, options.workers, options.batch_size, options.delay, options.backend)
        servers = {name: stack.enter_context(serving(store, {name: f"{name}.mar"})) for name in (PLAIN, OURS)}
        for name, server in servers.items():
            compare(server.inference, f"/predictions/{name}", model, sequences[:COMPARED])
        results = _rounds(servers, sequences, options)
    found = standings(results)
    console = Console()
    print_results(results, console)
    console.print(standings_table(found))
    figures = {"settings": _settings(options), **to_json(results), "floors": standings_json(found)}
    write_figures(figures, options.json)
    return conclude(found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rest", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each server (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of load in a turn (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="clients at once (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="workers of each server (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="batchSize of both (default: %(default)s)")
    parser.add_argument("--delay", type=int, default=1, help="maxBatchDelay of both, ms (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of our archive (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> dict[str, object]:
    return {name: value for name, value in vars(options).items() if name != "json"}


def draw_sequences() -> list[list[int]]:
    """Sequences of random tokens of log-normal lengths: 26 on average, at most 330. Always the same."""
    generator = random.Random(0)
    lengths = log_normal(SEQUENCES, generator, LONGEST)
    return [[generator.randrange(TOKENS) for _ in range(length)] for length in lengths]


def compare(
    port: int, path: str, model: TokenClassifier, sequences: Sequence[Sequence[int]], tolerance: float = 1e-5
) -> None:
    """Compare the server's answers to some sequences with the model in eager mode.

    Raises:
        WrongAnswer: an answer differs by more than `tolerance` x (1 + |eager|).
    """
    for ids in sequences:
        with torch.inference_mode():
            expected = model(torch.tensor([ids]), torch.tensor([len(ids)]))[0]
        answer = torch.tensor(_ask(port, path, ids))
        if answer.shape != expected.shape or not torch.allclose(answer, expected, rtol=tolerance, atol=tolerance):
            raise WrongAnswer(
                f"{path}: a sequence of {len(ids)} tokens is answered {answer}, the model says {expected}"
            )


def _ask(port: int, path: str, ids: Sequence[int]) -> object:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(ids).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        answer: object = json.load(reply)
    return answer


def _rounds(
    servers: Mapping[str, TorchServe], sequences: Sequence[Sequence[int]], options: argparse.Namespace
) -> Results:
    """Load both servers in turns, after a warm-up that is not counted.

    Each server goes first in every other round.
    """
    bodies = [json.dumps(ids).encode() for ids in sequences]
    requests = {name: [http_post(f"/predictions/{name}", body) for body in bodies] for name in servers}
    rounds: dict[str, list[Round]] = {name: [] for name in servers}
    names = list(servers)
    for name in names:
        _load(servers[name], requests[name], options.connections, options.seconds)
    for number in range(options.rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            random.seed(number)  # the same sequences in the same order for both
            rounds[name].append(_load(servers[name], requests[name], options.connections, options.seconds))
    return Results({name: tuple(taken) for name, taken in rounds.items()}, cores=len(os.sched_getaffinity(0)))


def _load(server: TorchServe, requests: Sequence[bytes], connections: int, seconds: float) -> Round:
    before = time.process_time()
    done = load(server.inference, requests, connections, seconds)
    return Round(tuple(done.milliseconds), done.seconds, client_s=time.process_time() - before)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (DidNotStart, Refused, WrongAnswer) as failed:
        sys.exit(f"the benchmark failed: {failed}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"the benchmark failed: {failed}\n{failed.output}")
