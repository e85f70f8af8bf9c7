"""`make bench-hosts`: our archive on Ray Serve, compared with a plain application and with TorchServe.

All have the same model and all cores, and the same clients send them requests in turns. Both applications are behind
the same ingress of Ray Serve, with its settings for throughput and without access logs. Exits 1 if a floor is missed;
the last lines name it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from torchserve_process import serving

from ..load import http_post, load
from ..onnx_session import export
from ..rest.__main__ import COMPARED, compare, draw_sequences
from ..rest.archives import OURS as NAME
from ..rest.archives import make_archives, make_model
from ..rest.results import Round
from ..standing import conclude, standings_json, standings_table, write_figures
from .ray_server import COMPARED as COMPARED_APPLICATIONS
from .ray_server import SCALED
from .results import OURS, PLAIN, PLAIN_REPLICAS, TORCHSERVE, Rounds, print_results, standings, to_json
from .scaling import Scaling, measure
from .servers import ray_serving

_CLIENTS = 64


class Contestant(NamedTuple):
    """A server's port, and the path of its model."""

    port: int
    path: str


def main() -> int:
    """Package, serve, compare, load and report. Returns the exit code."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        store = Path(folder)
        rounds, scaling = _measure(store, options)
    found = standings(rounds, scaling)
    console = Console()
    print_results(rounds, console)
    console.print(standings_table(found))
    write_figures({**to_json(rounds, scaling), "floors": standings_json(found)}, options.json)
    return conclude(found)


def _measure(store: Path, options: argparse.Namespace) -> tuple[Rounds, Scaling | None]:
    model, sequences = make_model(), draw_sequences()
    make_archives(model, store, 1, 32, 1, "native", (NAME,))
    archive, onnx = store / f"{NAME}.mar", store / "model.onnx"
    export(model, onnx)
    with ExitStack() as stack:
        torchserve = stack.enter_context(serving(store, {NAME: f"{NAME}.mar"}))
        ray = stack.enter_context(ray_serving(archive, onnx, COMPARED_APPLICATIONS))
        contestants = {
            OURS: Contestant(ray.port, f"/ours/predictions/{NAME}"),
            PLAIN: Contestant(ray.port, "/plain"),
            PLAIN_REPLICAS: Contestant(ray.port, "/plain-replicas"),
            TORCHSERVE: Contestant(torchserve.inference, f"/predictions/{NAME}"),
        }
        for contestant in contestants.values():
            compare(contestant.port, contestant.path, model, sequences[:COMPARED])
        rounds = _rounds(contestants, sequences, options)
    if not options.scaling:
        return rounds, None
    with ray_serving(archive, onnx, SCALED) as ray:  # alone: each replica takes some CPU time while it waits
        return rounds, measure(ray, archive, options.rounds, options.seconds)


def _rounds(
    contestants: Mapping[str, Contestant], sequences: Sequence[Sequence[int]], options: argparse.Namespace
) -> Rounds:
    """Load all in turns, each round in another order, after a warm-up that is not counted."""
    bodies = [json.dumps(ids).encode() for ids in sequences]
    rounds: dict[str, list[Round]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in track(range(-1, options.rounds), "rounds"):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            random.seed(number)  # the same sequences in the same order for all
            requests = [http_post(contestants[name].path, body) for body in bodies]
            before = time.process_time()
            done = load(contestants[name].port, requests, _CLIENTS, options.seconds)
            if number >= 0:
                rounds[name].append(Round(tuple(done.milliseconds), done.seconds, time.process_time() - before))
    return {name: tuple(taken) for name, taken in rounds.items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of load in a turn (default: %(default)s)")
    parser.add_argument(
        "--scaling", action=argparse.BooleanOptionalAction, default=True, help="one and two replicas too (default)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
