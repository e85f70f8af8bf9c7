"""A single request after a pause: our handler from JSON to JSON, and ONNX Runtime's session alone.

Run from the repository's root: `python -m benchmarks.lone [--backend native] [--precision float32] [--json FILE]`;
about two minutes. Exits 1 if a floor is missed; the last lines name it.

Both have the same model, the same process and the same threads. Each sleeps, then answers three requests of 20
timesteps one after the other: the first call finds threads asleep and caches cold. They take turns. Our time is that of
the whole handler; ONNX Runtime's is its `run` with arrays that are ready.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console

from torchserve_neuron_lstm.backends.cores import available_cores
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive
from torchserve_neuron_lstm.inference.reader import ArchiveReader
from torchserve_neuron_lstm.inference.service import make_service

from .onnx_session import export, open_session
from .rest.archives import OURS as NAME
from .rest.archives import TOLERANCES, make_archives, make_model
from .standing import Standing, conclude, plain_table, standings_json, standings_table, write_figures

TIMESTEPS, TOKENS = 20, 10_000
PAUSES_MS = (0, 2, 10, 40)
CALLS = 3
"""Requests after each pause."""
_QUIET_S = 0.1
"""Seconds before a turn: the threads of ONNX Runtime spin for some 30 ms after its call, on a core that ours need."""
OURS, ONNX = "ours, JSON to JSON", "ONNX Runtime's session alone"
Seconds = Mapping[str, Mapping[int, list[tuple[float, ...]]]]
"""Seconds of the calls after each pause, by contestant and milliseconds of the pause."""


def main() -> int:
    """Measure and report. Returns the exit code."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="lone-") as folder:
        model = make_model()
        make_archives(model, Path(folder), 1, 32, 1, options.backend, [NAME], precision=options.precision)
        export(model, Path(folder) / "model.onnx")
        with ArchiveReader(Path(folder) / f"{NAME}.mar").unpacked() as unpacked:
            ids = [random.Random(0).randrange(TOKENS) for _ in range(TIMESTEPS)]
            calls = _contestants(unpacked, Path(folder) / "model.onnx", ids, TOLERANCES[options.precision])
            seconds = race(calls, options.rounds)
    found = standings(seconds)
    _print(seconds, found, Console())
    write_figures({"seconds": seconds, "floors": standings_json(found)}, options.json)
    return conclude(found)


def _contestants(unpacked: Path, onnx: Path, ids: list[int], tolerance: float) -> dict[str, Callable[[], object]]:
    """The calls, whose answers are equal up to the tolerance."""
    loaded = load_archive(unpacked, None)
    service = make_service(loaded, make_codec(loaded.manifest, ModelIdentity(NAME, "")))
    body = json.dumps(ids).encode()
    headers = {"content-type": "application/json"}
    session = open_session(onnx, available_cores())
    feeds = {"ids": np.array([ids]), "lengths": np.array([TIMESTEPS])}

    def answer() -> RawResponse:
        return service.handle([RawRequest({"body": body}, headers)])[0]

    expected = session.run(None, feeds)[0][0]
    np.testing.assert_allclose(json.loads(answer().body), expected, rtol=tolerance, atol=tolerance)
    return {OURS: answer, ONNX: partial(session.run, None, feeds)}


def race(
    calls: Mapping[str, Callable[[], object]], rounds: int, sleep: Callable[[float], None] = time.sleep
) -> Seconds:
    """Sleep and call, in turns; each round begins with another pause."""
    seconds: dict[str, dict[int, list[tuple[float, ...]]]] = {name: {ms: [] for ms in PAUSES_MS} for name in calls}
    for number in range(rounds):
        first = number % len(PAUSES_MS)
        for pause_ms in PAUSES_MS[first:] + PAUSES_MS[:first]:
            for name, call in calls.items():
                sleep(_QUIET_S)
                call()
                sleep(pause_ms / 1000)
                seconds[name][pause_ms].append(tuple(_seconds(call) for _ in range(CALLS)))
    return seconds


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def middle(taken: list[tuple[float, ...]], place: int) -> float:
    """Return the median seconds of the call at a place after the pause."""
    return median(calls[place] for calls in taken)


def standings(seconds: Seconds) -> list[Standing]:
    """The standings of the first and second call after 10 and 40 ms."""
    return [
        Standing(
            f"time of call {place + 1} after {pause_ms} ms, times ONNX Runtime's",
            middle(seconds[OURS][pause_ms], place) / middle(seconds[ONNX][pause_ms], place),
            1.0,
            0.7,
            "less",
        )
        for pause_ms in (10, 40)
        for place in (0, 1)
    ]


def _print(seconds: Seconds, found: list[Standing], console: Console) -> None:
    table = plain_table(f"{TIMESTEPS} timesteps, milliseconds of each call after a pause, medians")
    table.add_column("")
    for heading in ("pause ms", *(f"call {place + 1}" for place in range(CALLS))):
        table.add_column(heading, justify="right")
    for name, by_pause in seconds.items():
        for pause_ms, taken in by_pause.items():
            table.add_row(name, str(pause_ms), *(f"{1000 * middle(taken, place):.2f}" for place in range(CALLS)))
    console.print(table)
    console.print(standings_table(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lone", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="rounds of all pauses (default: %(default)s)")
    parser.add_argument("--backend", default="native", help="the engine of the archive (default: %(default)s)")
    parser.add_argument("--precision", default="float32", choices=list(TOLERANCES), help="precision of the archive")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
