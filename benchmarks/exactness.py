"""Every model of the tests' zoo on every engine here: the largest difference to eager over many random ragged batches.

Run it from the repository's root: `python benchmarks/exactness.py [--batches 200] [--backends inductor onnxruntime]`.
Exits 1 if any difference is beyond the tolerance a packaged model is held to.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from ragged import alone, padded, part_of, ragged
from zoo import CASES, Case

from torchserve_neuron_lstm.archiver_ext.lowering import lower
from torchserve_neuron_lstm.archiver_ext.lowering.program import Program
from torchserve_neuron_lstm.backends.interface import Run
from torchserve_neuron_lstm.backends.registry import get_backend
from torchserve_neuron_lstm.bucketing.grid import Bucket
from torchserve_neuron_lstm.config.load import parse_config

TOLERANCE = 1e-5  # |ours - eager| <= TOLERANCE + TOLERANCE x |eager|
GARBAGE = (0.0, -1e4, 1e30)


def main() -> int:
    """Measure all, print the table; 0 if all hold."""
    arguments = _arguments()
    jobs = [(case.name, backend, arguments.batches) for case in CASES for backend in arguments.backends]
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        found = list(track(pool.map(_measure, *zip(*jobs, strict=True)), "models", total=len(jobs)))
    errors = {job[:2]: result for job, result in zip(jobs, found, strict=True)}
    Console().print(_table(errors, arguments.backends, arguments.batches))
    return 0 if all(worst <= 1 for _, worst in found) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200, help="random ragged batches for each model and engine")
    parser.add_argument("--backends", nargs="+", default=["inductor", "onnxruntime"])
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def _measure(name: str, backend: str, batches: int) -> tuple[float, float]:
    """The largest absolute difference, and the largest share of the tolerance it took."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    case = next(case for case in CASES if case.name == name)
    model = case.make().eval()
    program = lower(model, parse_config(case.yaml, "model-config.yaml"))
    buckets = _buckets(program)
    choose = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        runs = {bucket: _compiled(program, model, backend, bucket, Path(directory)) for bucket in buckets}
        worst = [_one_batch(case, model, program, runs, choose, seed) for seed in range(batches)]
    return max(absolute for absolute, _ in worst), max(share for _, share in worst)


def _buckets(program: Program) -> Sequence[Bucket]:
    has_batch = any(spec.batch_dim is not None for spec in program.inputs)
    lengths = (9, 16) if program.takes_lengths else (1,)
    return [Bucket(4 if has_batch else 1, length) for length in lengths]


def _compiled(program: Program, model: torch.nn.Module, backend: str, bucket: Bucket, directory: Path) -> Run:
    engine = get_backend(backend)
    place = directory / f"{bucket.batch}x{bucket.length}"
    place.mkdir()
    engine.compile(program.exported, None if engine.polymorphic else bucket, place)
    weights = {**dict(model.state_dict()), **program.constants}
    return engine.load(place, weights, engine.host(), threads=1)


def _one_batch(
    case: Case,
    model: torch.nn.Module,
    program: Program,
    runs: dict[Bucket, Run],
    choose: random.Random,
    seed: int,
) -> tuple[float, float]:
    bucket = choose.choice(list(runs))
    exact = program.padding == "exact_lengths"
    lengths = [bucket.length if exact else choose.randint(1, bucket.length) for _ in range(bucket.batch)]
    requests = ragged(program.inputs, lengths, seed)
    garbage = choose.choice(GARBAGE)
    batch = [padded(requests, spec, i, bucket.length, garbage) for i, spec in enumerate(program.inputs)]
    if program.takes_lengths:
        batch.append(torch.tensor(lengths))
    outputs = runs[bucket](batch)
    config = parse_config(case.yaml, "model-config.yaml")
    differences = [
        _difference(part_of(output, spec, row, length), reference)
        for row, length in enumerate(lengths)
        for output, spec, reference in zip(
            outputs, program.outputs, alone(model, config, requests.items[row], length), strict=True
        )
    ]
    return max(absolute for absolute, _ in differences), max(share for _, share in differences)


def _difference(ours: torch.Tensor, eager: torch.Tensor) -> tuple[float, float]:
    gap = (ours.double() - eager.double()).abs()
    gap = torch.where(gap.isnan(), torch.inf, gap)
    return float(gap.max()), float((gap / (TOLERANCE + TOLERANCE * eager.double().abs())).max())


def _table(errors: dict[tuple[str, str], tuple[float, float]], backends: Sequence[str], batches: int) -> Table:
    table = Table(title=f"Largest difference to eager over {batches} random ragged batches", title_justify="left")
    table.add_column("model")
    for backend in backends:
        table.add_column(backend, justify="right")
    show: Callable[[tuple[float, float]], str] = lambda error: f"{error[0]:.1e}" + ("" if error[1] <= 1 else "  MISS")  # noqa: E731
    for case in CASES:
        table.add_row(case.name, *(show(errors[case.name, backend]) for backend in backends))
    return table


if __name__ == "__main__":
    sys.exit(main())
