"""The process of one commit: it measures figures of that commit's code, asked for in lines of JSON.

python child.py hot_path ROOT      times the batches of ROOT/benchmarks/hot_path.py
python child.py archive FOLDER     serves the archive in FOLDER by its own handler

This file imports no file beside it, because the same names exist at the other commit. PYTHONPATH decides whose package
is imported; `about` reports which.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
import timeit
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

BATCH = 32
"""Requests of a batch of the hot path."""
ROWS = (8, 16, 32, 8, 16, 32)
"""Requests of each batch that the archive answers."""
TOKENS = 1_000
LONGEST = 128  # tokens
_BLOCK_S = 0.004
_BLOCKS = 6
"""Repetitions of a turn of the hot path."""
_PASSES = 2
"""Repetitions of all batches in a slice of the archive."""
_PACKAGE = "torchserve_neuron_lstm"

Question = dict[str, Any]
Reply = dict[str, Any]
Call = Callable[[], Any]


class HotPath:
    """The batches of one commit's hot_path.py, each timed as a whole."""

    def __init__(self, root: Path) -> None:
        self.script = _load(root / "benchmarks" / "hot_path.py", "hot_path")
        if torch := sys.modules.get("torch"):  # the script's own import
            torch.set_num_threads(1)
            torch.manual_seed(0)
        self.calls = _whole_batches(self.script)

    def about(self) -> Reply:
        """The path of the running code, and the bytes of the answers to each batch."""
        sizes = {name: sum(map(len, call())) for name, call in self.calls.items()}
        return {"script": str(self.script.__file__), "package": _package(), "answer_bytes": sizes}

    def measure(self, figure: str) -> float:
        """CPU microseconds of a request: the best of repetitions of 4 ms, with the garbage collector on."""
        timer = timeit.Timer(self.calls[figure], setup=gc.enable, timer=time.process_time)
        number = max(1, int(_BLOCK_S / max(1e-6, min(timer.repeat(repeat=3, number=1)))))
        return min(timer.repeat(repeat=_BLOCKS, number=number)) / number / BATCH * 1e6


class Archive:
    """An archive behind its own handler, as in a worker of TorchServe."""

    def __init__(self, folder: Path) -> None:
        from ts.context import Context, RequestProcessor

        handler = _load(folder / "neuron_lstm.py", "neuron_lstm")
        manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text("utf-8"))

        def context(count: int) -> Any:
            made = Context("classifier", str(folder), manifest, count, None, "0.12", True, None, {"maxWorkers": 1})
            headers = {"Content-Type": "application/json", "Accept": "*/*"}
            made.request_processor = [
                RequestProcessor({**headers, "body": {"content-type": headers["Content-Type"]}}) for _ in range(count)
            ]
            return made

        self.script = handler
        self.service = handler.NeuronLstm()
        self.service.initialize(context(max(ROWS)))
        self.batches = [(rows, context(len(rows))) for rows in requests()]

    def about(self) -> Reply:
        """The path of the running code, and its answers."""
        answers = [bytes(answer).decode() for answer in self._answer()]
        statuses = {
            context.get_response_status(index)[0] for rows, context in self.batches for index in range(len(rows))
        }
        if statuses - {200, None}:
            raise RuntimeError(f"the archive refuses requests: {answers[0]}")
        return {"script": str(self.script.__file__), "package": _package(), "answers": answers}

    def measure(self, figure: str) -> float:
        """CPU milliseconds of a request, user and system, of all threads: the best of equal passes."""
        taken = []
        for _ in range(_PASSES):
            began = time.process_time()
            self._answer()
            taken.append(time.process_time() - began)
        return min(taken) / sum(ROWS) * 1e3

    def _answer(self) -> list[bytes]:
        return [answer for rows, context in self.batches for answer in self.service.handle(rows, context)]


def requests() -> list[list[dict[str, bytearray]]]:
    """Batches of lists of token ids as JSON, always the same.

    Half of the lists have fewer than 20 tokens; the average is 26, and few are long.
    """
    source = random.Random(0)

    def body() -> bytearray:
        length = min(LONGEST, max(1, round(source.lognormvariate(3.0, 0.7))))
        return bytearray(json.dumps([source.randrange(TOKENS) for _ in range(length)]).encode())

    return [[{"body": body()} for _ in range(rows)] for rows in ROWS]


def pin(core: int | None) -> None:
    """Keep every thread of this process on one core, where the system supports it."""
    if core is not None:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


def reply(subject: HotPath | Archive, question: Question) -> Reply:
    """Answer one question: `about`, or a figure and the core to measure it on."""
    if question["ask"] == "about":
        return subject.about()
    pin(question["core"])
    wall, cpu = time.perf_counter(), time.process_time()
    value = subject.measure(question["figure"])
    return {"value": value, "share": (time.process_time() - cpu) / (time.perf_counter() - wall)}


def serve(subject: HotPath | Archive, questions: TextIO, replies: TextIO) -> None:
    """Write one line for each line that is read."""
    for line in questions:
        print(json.dumps(reply(subject, json.loads(line))), file=replies, flush=True)


def _whole_batches(script: ModuleType) -> dict[str, Call]:
    if hasattr(script, "whole_batches"):
        batches: dict[str, Call] = script.whole_batches(BATCH)
        return batches
    # for a hot_path.py from before `whole_batches`
    ids, parsed, frames, frames_npy = script.TRAFFIC
    kinds = {
        "ids_json": (ids, "sequence"),
        "ids_parsed": (parsed, "sequence"),
        "frames_npy_to_json": (frames, "sequence"),
        "frames_npy_to_npy": (frames_npy, "sequence"),
        "ids_json_chunk": (ids, "chunk"),
    }
    return {name: script.stages(traffic, kind, BATCH)["all of it"] for name, (traffic, kind) in kinds.items()}


def _load(file: Path, name: str) -> ModuleType:
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(file)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _package() -> str:
    return str(Path(str(sys.modules[_PACKAGE].__file__)).resolve().parent)


def main() -> None:
    """Load the subject that the arguments name, then answer questions until the input ends."""
    kind, path, core = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries is no reply
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    pin(int(core) if core else None)
    subjects: dict[str, Callable[[Path], HotPath | Archive]] = {"hot_path": HotPath, "archive": Archive}
    serve(subjects[kind](Path(path)), sys.stdin, replies)


if __name__ == "__main__":
    main()
