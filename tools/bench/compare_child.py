"""Functions for a process of one commit, which serves an archive by its handler and measures it.

Nothing of the package is imported before `start` says whose it is.
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .ragged import log_normal

Kind = Literal["tokens", "frames", "archive"]
FIGURES: Mapping[Kind, tuple[str, ...]] = {
    "tokens": ("token ids as JSON, alone", "token ids as JSON, batch", "token ids, parsed, batch"),
    "frames": (".npy to JSON, batch", ".npy to .npy, batch"),
    "archive": ("classifier, alone", "classifier, batch"),
}
"""Figures by archive. The models of the first two are so small that their figures are those of the code around them."""
_BATCH = 32
_TOKENS, _LONGEST = 1000, 128
_SLICE_S = 0.03
_JSON, _NPY = "application/json", "application/x-npy"
_PACKAGE = "torchserve_neuron_lstm"

_BATCHES: dict[str, list[partial[Any]]] = {}
"""Calls of the handler for each figure in this process: with the same requests for every commit."""


def start(kind: Kind, folder: Path, source: Path, core: int) -> None:
    """Load an archive behind its handler, as in a worker of TorchServe, and draw its requests."""
    pin(core)
    sys.path[:0] = [str(folder), str(source)]
    from ts.context import Context, RequestProcessor

    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))

    def context(bodies: Sequence[object], sent: str, accepted: str) -> Any:
        made = Context("model", str(folder), manifest, len(bodies), None, "0.12", True, None, {"maxWorkers": 1})
        headers = {"Content-Type": sent, "Accept": accepted, "body": {"content-type": sent}}
        made.request_processor = [RequestProcessor({**headers, "Content-Length": _size(body)}) for body in bodies]
        return made

    service = import_module("neuron_lstm").NeuronLstm()
    service.initialize(context([], _JSON, "*/*"))
    chance = random.Random(0)
    for figure in FIGURES[kind]:
        body = _frames if kind == "frames" else _ids if "parsed" in figure else _ids_as_json
        sent, accepted = _NPY if kind == "frames" else _JSON, _NPY if "to .npy" in figure else "*/*"
        counts = [1] * 8 if "alone" in figure else [_BATCH, 8, 16]
        drawn = [[body(chance) for _ in range(count)] for count in counts]
        _BATCHES[figure] = [
            partial(service.handle, [{"body": body} for body in bodies], context(bodies, sent, accepted))
            for bodies in drawn
        ]


def about() -> tuple[Path, list[str]]:
    """Return the folder of the running code, and all answers as JSON; raises `RuntimeError` at a refusal."""
    answers: list[str] = []
    for figure, batches in _BATCHES.items():
        for batch in batches:
            replies, (rows, context) = batch(), batch.args
            statuses = {context.get_response_status(index)[0] for index in range(len(rows))}
            if statuses - {200, None}:
                raise RuntimeError(f"the archive refuses requests: {bytes(replies[0])!r}")
            answers += [
                json.dumps(np.load(io.BytesIO(reply)).tolist()) if "to .npy" in figure else bytes(reply).decode()
                for reply in replies
            ]
    return Path(str(sys.modules[_PACKAGE].__file__)).parent, answers


def measured(figure: str, core: int) -> tuple[float, float]:
    """Return CPU microseconds of a request, of all threads: the best of repetitions; and their share of the core."""
    pin(core)
    batches = _BATCHES[figure]
    requests = sum(len(batch.args[0]) for batch in batches)
    wall, best, spent = time.perf_counter(), float("inf"), 0.0
    while spent < _SLICE_S:
        began = time.process_time()
        for batch in batches:
            batch()
        seconds = time.process_time() - began
        best, spent = min(best, seconds), spent + seconds
    return best / requests * 1e6, spent / (time.perf_counter() - wall)


def _size(body: object) -> str:
    """Return the header Content-Length of a body, which may be parsed."""
    return str(len(body if isinstance(body, bytearray) else json.dumps(body)))


def _ids(source: random.Random) -> list[int]:
    return [source.randrange(_TOKENS) for _ in range(min(_LONGEST, *log_normal(1, source)))]


def _ids_as_json(source: random.Random) -> bytearray:
    return bytearray(json.dumps(_ids(source)).encode())


def _frames(source: random.Random) -> bytearray:
    file = io.BytesIO()
    np.save(file, np.random.default_rng(source.randrange(1 << 32)).standard_normal((50, 128), dtype=np.float32))
    return bytearray(file.getvalue())


def pin(core: int) -> None:
    """Keep every thread of this process on one core."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
