"""Batches from JSON to JSON through the handler, as a share of the cores' fused multiply-adds.

Run from the repository's root: `python -m benchmarks.json_to_json [--rounds 20] [--json FILE]`; about a minute. Exits 1
if a floor is missed; the last lines name it.

The handler and its engine are in this process, without a server. In each round the loop of multiply-adds and the
batches of each case take turns. The useful operations are those of the LSTM alone: decoding, planning, the embedding,
the last layer and encoding count as time, not as operations.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from rich.console import Console

from torchserve_neuron_lstm.backends.cores import available_cores
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.inference.reader import ArchiveReader
from torchserve_neuron_lstm.inference.service import make_service

from .fma.loop import FmaLoop
from .ragged.cases import LOG_NORMAL_32, TRIANGLE_8, TRIANGLE_32, Case
from .rest.archives import OURS as NAME
from .rest.archives import make_archives, make_model
from .standing import Standing, conclude, standings_json, standings_table, write_figures

TOKENS = 10_000
FMA = "multiply-adds"
FLOORS: Mapping[Case, tuple[float, float]] = {
    TRIANGLE_32: (0.72, 0.80),
    LOG_NORMAL_32: (0.58, 0.65),
    TRIANGLE_8: (0.58, 0.70),
}
"""The floor and the aim of each case, as shares of the rate of multiply-adds."""


class Refused(RuntimeError):
    """A request was not answered with 200."""


def main() -> int:
    """Measure and report. Returns the exit code."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="json-to-json-") as name:
        folder = Path(name)
        make_archives(make_model(), folder, 1, 32, 1, options.backend, [NAME])
        loop = FmaLoop(available_cores(), folder)
        with ArchiveReader(folder / f"{NAME}.mar").unpacked() as unpacked:
            loaded = load_archive(unpacked, None)
            service = make_service(loaded, make_codec(loaded.manifest, ModelIdentity(NAME, "")))
            seconds = race({FMA: loop, **{case.name: _answers(service, case) for case in FLOORS}}, options.rounds)
    found = standings(seconds, loop.gflops(seconds[FMA]))
    Console().print(standings_table(found))
    write_figures({"seconds": seconds, "floors": standings_json(found)}, options.json)
    return conclude(found)


def _answers(service: Service, case: Case) -> Callable[[], None]:
    """The call that answers all batches of a case."""
    generator = random.Random(0)
    batches = [[_request(generator, length) for length in batch] for batch in case.batches]

    def answer() -> None:
        for batch in batches:
            refused = [response for response in service.handle(batch) if response.status != 200]
            if refused:
                raise Refused(f"{case}: {len(refused)} of {len(batch)} requests, {refused[0].body!r}")

    return answer


def _request(generator: random.Random, length: int) -> RawRequest:
    body = json.dumps([generator.randrange(TOKENS) for _ in range(length)]).encode()
    return RawRequest({"body": body}, {"content-type": "application/json"})


def race(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, ...]]:
    """Call each in every round, after one round that does not count. Returns seconds."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if number > 0:
                taken[name].append(time.perf_counter() - began)
    return {name: tuple(values) for name, values in taken.items()}


def standings(seconds: Mapping[str, tuple[float, ...]], fma_gflops: float) -> list[Standing]:
    """The share of each case, by its median."""
    return [
        Standing(
            f"share of the multiply-adds, {case}", case.flop / median(seconds[case.name]) / 1e9 / fma_gflops, *bounds
        )
        for case, bounds in FLOORS.items()
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.json_to_json", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of all cases (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of the archive (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
