"""`make bench-serve`: `neuron-lstm serve` against a plain handler on a TorchServe with stock settings.

All have the same model, and the same clients send them requests in turns. The CPU time of a request is that of Java and
of the workers. A row for each setting shows its gain: there, the setting is that of a stock TorchServe. Run from the
repository's root: `python -m benchmarks.serve`. Exits 1 if a floor is missed; the last lines name it.
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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from torchserve_process import DidNotStart

from torchserve_neuron_lstm.inference.errors import ArchiveError

from ..load import Refused, http_post, load
from ..rest.__main__ import COMPARED, WrongAnswer, compare, draw_sequences
from ..rest.archives import TOLERANCES, make_archives, make_model
from ..standing import conclude, standings_json, standings_table, write_figures
from .contestants import Contestant, contestants
from .results import Results, ServedRound, print_results, standings, to_json
from .servers import CpuTime, Server, started

_CORES = len(os.sched_getaffinity(0))


def main() -> int:
    """Package, serve, compare, load and report. Returns the exit code."""
    options = _options()
    model, sequences = make_model(), draw_sequences()
    with ExitStack() as stack:
        stores = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="serve-")))
        all_of_them = contestants(_CORES)
        for one in {one.store: one for one in all_of_them}.values():
            store = stores / one.store
            store.mkdir()
            make_archives(
                *(model, store, one.workers, options.batch_size, options.delay, "native"), precision=one.precision
            )
        servers = {one: stack.enter_context(started(one, stores)) for one in all_of_them}
        for one, server in servers.items():
            path, tolerance = f"/predictions/{one.handler}", TOLERANCES[one.precision]
            compare(server.served.inference, path, model, sequences[:COMPARED], tolerance)
        results = _rounds(servers, sequences, options)
    found = standings(results)
    console = Console()
    print_results(results, console)
    console.print(standings_table(found))
    write_figures({"cores": _CORES, **to_json(results), "floors": standings_json(found)}, options.json)
    return conclude(found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of load in a turn (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=15.0, help="seconds of load before (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="clients at once (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="batchSize of all (default: %(default)s)")
    parser.add_argument("--delay", type=int, default=1, help="maxBatchDelay of all, ms (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def _rounds(
    servers: Mapping[Contestant, Server], sequences: Sequence[Sequence[int]], options: argparse.Namespace
) -> Results:
    """Load all servers in turns. The order turns round after each round.

    The warm-up is not counted: Java compiles its own code until it has answered some ten thousand requests, which
    costs several times what they cost afterwards.
    """
    bodies = [json.dumps(ids).encode() for ids in sequences]
    requests = {one: [http_post(f"/predictions/{one.handler}", body) for body in bodies] for one in servers}
    rounds: dict[Contestant, list[ServedRound]] = {one: [] for one in servers}
    names = list(servers)
    for one in names:
        load(servers[one].served.inference, requests[one], options.connections, options.warm_up)
    for number in range(options.rounds):
        for one in names if number % 2 == 0 else names[::-1]:
            random.seed(number)  # the same sequences in the same order for all
            rounds[one].append(_load(servers[one], requests[one], options))
    return Results(rounds)


def _load(server: Server, requests: Sequence[bytes], options: argparse.Namespace) -> ServedRound:
    before, client = server.cpu_time(), time.process_time()
    done = load(server.served.inference, requests, options.connections, options.seconds)
    client_s = time.process_time() - client
    after = server.cpu_time()
    spent = CpuTime(after.java - before.java, after.workers - before.workers)
    return ServedRound(tuple(done.milliseconds), done.seconds, client_s, spent)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ArchiveError, DidNotStart, Refused, WrongAnswer) as failed:
        sys.exit(f"the benchmark failed: {failed}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"the benchmark failed: {failed}\n{failed.output}")
