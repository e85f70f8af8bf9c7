"""The largest difference to eager mode: every test model on every engine here.

Each is measured over many random ragged batches.

A model that can be chunked runs in chunks, by plans for random costs. With fixed shapes, sequences are several times as
long as the longest chunk. The padding is 0, -1e4 or 1e30.

Run it from the repository's root: `python -m benchmarks.exactness [--batches 200] [--backends inductor onnxruntime]`.
Exits 1 if any difference is beyond the tolerance of packaging.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from model_cases import CASES, Case
from ragged import Ragged, alone, pad_with, ragged

from torchserve_neuron_lstm.archiver_ext.evaluation.candidate import has_dynamic_shape, make_candidate
from torchserve_neuron_lstm.backends.interface import Backend, LoadedProgram
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import Tensors, execute
from torchserve_neuron_lstm.bucketing.execute_chunks import ChunkSignature, execute_chunks
from torchserve_neuron_lstm.bucketing.plan import Plan
from torchserve_neuron_lstm.bucketing.planner import ExecutionMode, make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, DynamicShape, ProgramRole, Shapes, role_buckets
from torchserve_neuron_lstm.config.load import parse_config
from torchserve_neuron_lstm.lowering import lower
from torchserve_neuron_lstm.lowering.program import LoweredModel

TOLERANCE = 1e-5  # |ours - eager| <= TOLERANCE + TOLERANCE x |eager|
GARBAGE = (0.0, -1e4, 1e30)
BATCH, LENGTHS, CHUNKS = 4, (9, 16), (3, 8)
LONGEST = 3 * CHUNKS[-1]
MOST_REQUESTS = 6


def main() -> int:
    """Measure all models and print the table. Returns 0 if all are within the tolerance."""
    arguments = _arguments()
    models = arguments.models or [case.name for case in CASES]
    jobs = [(model, backend, arguments.batches) for model in models for backend in arguments.backends]
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        found = list(track(pool.map(_measure, *zip(*jobs, strict=True)), "models", total=len(jobs)))
    errors = {job[:2]: result for job, result in zip(jobs, found, strict=True)}
    Console().print(_table(errors, models, arguments.backends, arguments.batches))
    return 0 if all(worst <= 1 for _, worst, _ in found) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200, help="random ragged batches for each model and engine")
    parser.add_argument("--models", nargs="+", help="class names of test models; default: all")
    parser.add_argument("--backends", nargs="+", default=["native", "inductor", "onnxruntime", "eager"])
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def _measure(name: str, backend: str, batches: int) -> tuple[float, float, ExecutionMode]:
    """The largest absolute difference, the largest share of the tolerance, and the execution mode."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    case = next(case for case in CASES if case.name == name)
    model = case.make().eval()
    engine = get_backend(backend)
    program = make_candidate(engine, lower(model, parse_config(case.yaml, "model-config.yaml")), streams=False).program
    choose = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        served = _compiled(program, model, engine, Path(directory))
        worst = [_one_batch(case, model, served, choose, seed) for seed in range(batches)]
    return max(absolute for absolute, _ in worst), max(share for _, share in worst), served.kind


@dataclass(frozen=True)
class _Served:
    """The programs of a model on one engine."""

    program: LoweredModel
    shapes: Shapes
    longest: int
    programs: Mapping[ProgramRole, Mapping[Bucket | None, LoadedProgram]]

    @property
    def kind(self) -> ExecutionMode:
        return "sequence" if self.program.chunked is None else "chunk"

    def plan(self, lengths: Sequence[int], choose: random.Random) -> Plan:
        """A plan of calls that are the cheapest by random costs."""
        buckets = self.shapes.buckets if isinstance(self.shapes, BucketGrid) else _corners(self.shapes)
        cost = CostModel({bucket: choose.uniform(0.5, 2.0) * bucket.batch * bucket.length for bucket in buckets})
        padded = self.program.padding == "masked"
        return make_planner(self.kind, self.shapes, cost, padded=padded, longest=self.longest).plan(lengths)

    def run(self, part: ProgramRole, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        programs = self.programs[part]
        return (programs.get(bucket) or programs[None])(tensors)

    def answer(self, plan: Plan, requests: Ragged, garbage: float) -> list[Tensors]:
        """The answers, with arbitrary values in the padding."""
        facts, pad = self.program, pad_with(garbage)
        if facts.chunked is not None:
            signature = ChunkSignature(facts.inputs, facts.outputs, facts.chunked.carried)
            return execute_chunks(plan, requests.items, requests.lengths, signature, self.run, pad)
        run = partial(self.run, "sequence")
        takes = facts.takes_lengths
        return execute(plan, requests.items, requests.lengths, facts.inputs, facts.outputs, takes, run, pad)


def _corners(shape: DynamicShape) -> list[Bucket]:
    return [Bucket(batch, length) for batch in (1, shape.batch) for length in (1, shape.length)]


def _compiled(program: LoweredModel, model: torch.nn.Module, engine: Backend, directory: Path) -> _Served:
    has_batch = any(spec.batch_dim is not None for spec in program.inputs)
    lengths = (LENGTHS if program.chunked is None else CHUNKS) if program.takes_lengths else (1,)
    grid = BucketGrid((BATCH if has_batch else 1,), lengths)
    longest = lengths[-1] if program.chunked is None else LONGEST
    weights = {**dict(model.state_dict()), **program.constants}
    programs: dict[ProgramRole, dict[Bucket | None, LoadedProgram]] = {}
    for part, exported in program.parts.items():
        for bucket in [None] if engine.polymorphic else role_buckets(part, grid):
            place = directory / part / str(bucket)
            place.mkdir(parents=True)
            engine.compile(exported, bucket, place)
            programs.setdefault(part, {})[bucket] = engine.load(place, weights, engine.host(), 1)
    shapes = DynamicShape(grid.batches[-1], longest) if has_dynamic_shape(engine, program) else grid
    return _Served(program, shapes, longest, programs)


def _one_batch(
    case: Case, model: torch.nn.Module, served: _Served, choose: random.Random, seed: int
) -> tuple[float, float]:
    program = served.program
    count = choose.randint(1, MOST_REQUESTS)
    exact = program.padding == "exact_lengths"
    lengths = [choose.choice(LENGTHS) if exact else choose.randint(1, served.longest) for _ in range(count)]
    requests = ragged(program.inputs, lengths, seed)
    with torch.no_grad():
        answers = served.answer(served.plan(lengths, choose), requests, choose.choice(GARBAGE))
    config = parse_config(case.yaml, "model-config.yaml")
    differences = [
        _difference(ours, reference if spec.batch_dim is None else reference.select(spec.batch_dim, 0))
        for answer, item, length in zip(answers, requests.items, lengths, strict=True)
        for ours, spec, reference in zip(answer, program.outputs, alone(model, config, item, length), strict=True)
    ]
    return max(absolute for absolute, _ in differences), max(share for _, share in differences)


def _difference(ours: torch.Tensor, eager: torch.Tensor) -> tuple[float, float]:
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return float("inf"), float("inf")
    gap = (ours.double() - eager.double()).abs()
    gap = torch.where(gap.isnan(), torch.inf, gap)
    return float(gap.max()), float((gap / (TOLERANCE + TOLERANCE * eager.double().abs())).max())


def _table(
    errors: Mapping[tuple[str, str], tuple[float, float, ExecutionMode]],
    models: Sequence[str],
    backends: Sequence[str],
    batches: int,
) -> Table:
    table = Table("model", "runs as", title=f"Largest difference to eager over {batches} random ragged batches")
    for backend in backends:
        table.add_column(backend, justify="right")
    for model in models:
        found = [errors[model, backend] for backend in backends]
        shown = (f"{largest:.1e}" + ("" if share <= 1 else "  MISS") for largest, share, _ in found)
        table.add_row(model, found[0][2], *shown)
    return table


if __name__ == "__main__":
    sys.exit(main())
