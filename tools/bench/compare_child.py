"""Process of one commit, which serves an archive by its handler and measures it.

Questions and replies are lines of JSON.

python compare_child.py KIND FOLDER CORE

It imports no file beside it. `about` reports which code runs.
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

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

Batch = tuple[list[dict[str, Any]], Any]
"""Rows of requests, and the context that TorchServe gives with them."""


class Served:
    """An archive behind its handler, as in a worker of TorchServe."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        """Load the archive, and draw the requests of each figure: the same ones for every commit."""
        from ts.context import Context, RequestProcessor

        manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))

        def context(count: int, sent: str, accepted: str) -> Any:
            made = Context("model", str(folder), manifest, count, None, "0.12", True, None, {"maxWorkers": 1})
            headers = {"Content-Type": sent, "Accept": accepted, "body": {"content-type": sent}}
            made.request_processor = [RequestProcessor(dict(headers)) for _ in range(count)]
            return made

        sys.path.insert(0, str(folder))
        self.service = import_module("neuron_lstm").NeuronLstm()
        self.service.initialize(context(_BATCH, _JSON, "*/*"))
        source = random.Random(0)
        self.batches: dict[str, list[Batch]] = {}
        for figure in FIGURES[kind]:
            body = _frames if kind == "frames" else _ids if "parsed" in figure else _ids_as_json
            sent, accepted = _NPY if kind == "frames" else _JSON, _NPY if "to .npy" in figure else "*/*"
            counts = [1] * 8 if "alone" in figure else [_BATCH, 8, 16]
            self.batches[figure] = [
                ([{"body": body(source)} for _ in range(count)], context(count, sent, accepted)) for count in counts
            ]

    def about(self) -> dict[str, Any]:
        """Return the folder of the running code, and all answers as JSON; raises `RuntimeError` at a refusal."""
        answers: list[str] = []
        for figure, batches in self.batches.items():
            for rows, context in batches:
                replies = self.service.handle(rows, context)
                statuses = {context.get_response_status(index)[0] for index in range(len(rows))}
                if statuses - {200, None}:
                    raise RuntimeError(f"the archive refuses requests: {bytes(replies[0])!r}")
                answers += [
                    json.dumps(np.load(io.BytesIO(reply)).tolist()) if "to .npy" in figure else bytes(reply).decode()
                    for reply in replies
                ]
        return {"package": str(Path(str(sys.modules[_PACKAGE].__file__)).parent), "answers": answers}

    def measure(self, figure: str) -> float:
        """Return CPU microseconds of a request, of all threads: the best of repetitions."""
        batches = self.batches[figure]
        requests = sum(len(rows) for rows, _ in batches)
        best, spent = float("inf"), 0.0
        while spent < _SLICE_S:
            began = time.process_time()
            for rows, context in batches:
                self.service.handle(rows, context)
            seconds = time.process_time() - began
            best, spent = min(best, seconds), spent + seconds
        return best / requests * 1e6


def _ids(source: random.Random) -> list[int]:
    """Draw token ids: half of the lists have fewer than 20, the average is 26, and few are long."""
    length = min(_LONGEST, max(1, round(source.lognormvariate(3.0, 0.7))))
    return [source.randrange(_TOKENS) for _ in range(length)]


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


def reply(served: Served, question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer one question: `about`, or a figure and the core to measure it on."""
    if question["ask"] == "about":
        return served.about()
    pin(question["core"])
    wall, cpu = time.perf_counter(), time.process_time()
    value = served.measure(question["figure"])
    return {"value": value, "share": (time.process_time() - cpu) / (time.perf_counter() - wall)}


def main(arguments: Sequence[str]) -> None:
    """Load the archive that the arguments name, then write one line for each line that is read."""
    kind, folder, core = arguments
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries is no reply
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    pin(int(core))
    served = Served(kind, Path(folder))  # type: ignore[arg-type]  # the caller has the kinds from here
    for line in sys.stdin:
        print(json.dumps(reply(served, json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
