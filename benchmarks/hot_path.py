"""Cost of a request apart from the engine: microseconds of one CPU per request, stage by stage.

python -m benchmarks.hot_path

The engine is a fake with ready answers; the context is TorchServe's own. An indented line is a part of the line above
it, measured alone. A figure is the best of many repeats.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from ts.context import Context, RequestProcessor

from torchserve_neuron_lstm.backends.interface import LoadedProgram as Program
from torchserve_neuron_lstm.bucketing.padding import lengths_tensor, pad, unpad
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, CarriedValue, ProgramRole, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.json_formats import parse_json
from torchserve_neuron_lstm.handlers.formats.json_text import fast_json
from torchserve_neuron_lstm.handlers.formats.npy import MAGIC, read_npy, write_npy
from torchserve_neuron_lstm.handlers.formats.raw_request import Body, RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.formats.sequences import read_sequence
from torchserve_neuron_lstm.handlers.responses import JSON, NPY
from torchserve_neuron_lstm.handlers.runtime.loader import LoadedArchive, Programs, planner_from_manifest
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.torchserve import handle

GRID = BucketGrid(batches=(1, 2, 4, 8, 16, 32), lengths=tuple(range(8, 65, 8)))
IDS = TensorSpec("ids", "int64", ("batch", "time"), vocabulary=10_000)
FRAMES = TensorSpec("frames", "float32", ("batch", "time", 128))
LOGITS = TensorSpec("logits", "float32", ("batch", 16))
STATE = TensorSpec("state", "float32", (2, "batch", 256))
COUNTS = (1, 8, 32)
_WHOLE = "all of it"
Kind = Literal["sequence", "chunk"]
Work = Callable[[], object]


@dataclass(frozen=True)
class Traffic:
    """One kind of request: its input, its body and the body's type, and the kind of answer."""

    name: str
    input: TensorSpec
    body: Callable[[random.Random], object]
    content_type: str = JSON
    accept: str = "*/*"

    def batch(self, count: int) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
        """Rows and headers of `count` requests in TorchServe's form."""
        source = random.Random(count)
        sent = {"Host": "localhost:8080", "User-Agent": "client/1.0", "Accept": self.accept, "Content-Length": "200"}
        own = {"Content-Type": self.content_type, "body": {"content-type": self.content_type}}
        return [{"body": self.body(source)} for _ in range(count)], [{**sent, **own} for _ in range(count)]


def _ids(source: random.Random) -> list[int]:
    return [source.randrange(10_000) for _ in range(source.randint(26, 50))]


def _ids_text(source: random.Random) -> bytearray:
    return bytearray(json.dumps(_ids(source)).encode())


def _frames_file(source: random.Random) -> bytearray:
    generator = torch.Generator().manual_seed(source.randrange(1 << 32))
    return bytearray(write_npy(torch.randn(50, 128, generator=generator)))


TRAFFIC = (
    Traffic("26 to 50 token ids as JSON, answered in JSON", IDS, _ids_text),
    Traffic("the same, when TorchServe has parsed the JSON", IDS, _ids),
    Traffic("50 x 128 float32 as .npy, answered in JSON", FRAMES, _frames_file, NPY),
    Traffic("50 x 128 float32 as .npy, answered in .npy", FRAMES, _frames_file, NPY, accept=NPY),
)


class Ready:
    """A program that returns answers that it has already computed, for any request."""

    def __init__(self, *outputs: TensorSpec) -> None:
        self.outputs = outputs
        self.answers: dict[int, list[torch.Tensor]] = {}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return states for as many rows as the first input has."""
        rows = inputs[0].shape[0]
        if rows not in self.answers:
            self.answers[rows] = [torch.randn(spec.sizes(rows, 1)) for spec in self.outputs]
        return self.answers[rows]


def make_model(spec: TensorSpec, kind: Kind) -> LoadedArchive:
    """A model of one input: `sequence` in the buckets of `GRID`, or `chunk` in every shape."""
    in_pieces = kind == "chunk"
    manifest = Manifest(
        backend="ready",
        requires=(),
        host={},
        inputs=(spec,),
        takes_lengths=True,
        outputs=(LOGITS,),
        padding="masked",
        padding_reason="lengths are given",
        overflow="reject",
        kind=kind,
        kind_reason="",
        carried=(CarriedValue(STATE, 0.0), CarriedValue(STATE, 0.0)) if in_pieces else (),
        grid=GRID,
        shapes="any" if in_pieces else "grid",
        longest=GRID.lengths[-1],
        variants=(),
        checks=(),
        costs=(),
        weights=None,
        constants=None,
    )
    state, head = _served(Ready(STATE, STATE)), _served(Ready(LOGITS))
    programs: dict[ProgramRole, Programs] = {"chunk": state, "head": head} if in_pieces else {"sequence": head}
    return LoadedArchive(manifest, planner_from_manifest(manifest), 1, programs)


def _served(program: Program) -> Programs:
    return {None: program}


def make_context(headers: Sequence[Mapping[str, object]]) -> Context:
    """TorchServe's own context, for one batch."""
    context = Context("model", ".", {}, len(headers), None, "0.12")
    context.request_processor = [RequestProcessor(own) for own in headers]
    return context


def stages(traffic: Traffic, kind: Kind, count: int) -> dict[str, Work]:
    """Return the timed stages of a whole batch, by name."""
    model = make_model(traffic.input, kind)
    facts, spec = model.manifest, traffic.input
    codec = make_codec(facts, ModelIdentity("model", "1.0"))
    service = Service(model, codec)
    rows, headers = traffic.batch(count)
    context = make_context(headers)
    bodies = [RawRequest(row, own).body() for row, own in zip(rows, headers, strict=True)]
    values = [_parsed(body) for body in bodies]
    requests = [codec.decode(RawRequest(row, own)) for row, own in zip(rows, headers, strict=True)]
    sequences = [request.sequences[0].tensors for request in requests]
    lengths = [request.sequences[0].length for request in requests]
    plan = model.plan(lengths)
    whole = Bucket(count, max(lengths))
    answers, _ = model.run_plan(plan, sequences, lengths)
    logits = torch.randn(count, 16)

    def tell_context() -> None:
        for index in range(count):
            context.get_all_request_header(index)
            context.set_response_content_type(index, JSON)

    return {
        "TorchServe's context": tell_context,
        "decode": lambda: [codec.decode(RawRequest(row, own)) for row, own in zip(rows, headers, strict=True)],
        "  row to body": lambda: [RawRequest(row, own).body() for row, own in zip(rows, headers, strict=True)],
        "  parse": lambda: [_parsed(body) for body in bodies],
        "  check, make tensors": lambda: [read_sequence({spec.name: value}, facts) for value in values],
        f"plan ({len(plan.calls)} calls)": lambda: model.plan(lengths),
        "execute": lambda: model.run_plan(plan, sequences, lengths),
        "  pad, all together": lambda: pad([tensors[0] for tensors in sequences], spec, whole),
        "  lengths": lambda: lengths_tensor(lengths, whole),
        "  unpad": lambda: unpad(logits, LOGITS, lengths),
        "encode": lambda: [codec.encode(request, [own]) for request, own in zip(requests, answers, strict=True)],
        _WHOLE: lambda: handle(service, rows, context),
    }


def whole_batches(count: int = 32) -> dict[str, Work]:
    """Whole batches of `count` requests, by name.

    `python -m benchmarks.compare` refers to the names: keep them.
    """
    kinds: tuple[tuple[str, Traffic, Kind], ...] = (
        ("ids_json", TRAFFIC[0], "sequence"),
        ("ids_parsed", TRAFFIC[1], "sequence"),
        ("frames_npy_to_json", TRAFFIC[2], "sequence"),
        ("frames_npy_to_npy", TRAFFIC[3], "sequence"),
        ("ids_json_chunk", TRAFFIC[0], "chunk"),
    )
    return {name: stages(traffic, kind, count)[_WHOLE] for name, traffic, kind in kinds}


def _parsed(body: Body) -> object:
    if isinstance(body.value, bytearray):
        fast = fast_json()
        if body.value.startswith(MAGIC):
            return read_npy(body.value)
        return fast.loads(body.value) if fast else parse_json(body)
    return body.value


def microseconds(work: Work, repeats: int) -> float:
    """The best of several repetitions of some milliseconds, with the garbage collector on as in a server."""
    once = min(timeit.repeat(work, number=1, repeat=5))
    number = max(1, int(0.004 / once))
    return min(timeit.repeat(work, setup=gc.enable, number=number, repeat=repeats)) / number * 1e6


def main() -> None:
    """Print a table for each kind of request and of model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--repeats", type=int, default=40, help="repetitions of each figure, of which the best is shown"
    )
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print("orjson is " + ("used" if fast_json() else "not installed"))
    kinds: list[tuple[Traffic, Kind]] = [*((traffic, "sequence") for traffic in TRAFFIC), (TRAFFIC[0], "chunk")]
    for traffic, kind in kinds:
        columns = [stages(traffic, kind, count) for count in COUNTS]
        print(f"\n{traffic.name}; {kind} programs\n{'microseconds a request':24}", end="")
        print("".join(f"  batch {count:3}" for count in COUNTS))
        for names in zip(*columns, strict=True):
            figures = [
                microseconds(work[name], repeats) / count
                for name, work, count in zip(names, columns, COUNTS, strict=True)
            ]
            print(f"{names[-1]:24}" + "".join(f"{figure:11.2f}" for figure in figures))


if __name__ == "__main__":
    main()
