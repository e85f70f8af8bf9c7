"""How long the core takes for one batch, beside the engine: planning, padding, unpadding.

python benchmarks/planning.py
"""

from __future__ import annotations

import random
import timeit
from collections.abc import Callable

import torch

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import execute
from torchserve_neuron_lstm.bucketing.grid import BucketGrid
from torchserve_neuron_lstm.bucketing.planner import Planner, planner_for
from torchserve_neuron_lstm.bucketing.spec import TensorSpec

GRID = BucketGrid(batches=(1, 4, 16, 32), lengths=tuple(range(16, 129, 16)))
IDS = TensorSpec("ids", "int64", ("batch", "time"))
SCORES = TensorSpec("scores", "float32", ("batch", "time", 64))


def microseconds(work: Callable[[], object]) -> float:
    """The best of several repetitions."""
    return min(timeit.repeat(work, number=50, repeat=7)) / 50 * 1e6


def measure(planner: Planner, count: int) -> tuple[int, float, float]:
    """Runs, microseconds of planning, and microseconds of padding and unpadding for `count` requests."""
    generator = random.Random(count)
    lengths = [generator.randint(1, GRID.lengths[-1]) for _ in range(count)]
    requests = [[torch.zeros(length, dtype=torch.int64)] for length in lengths]
    answers = {bucket: [torch.rand(SCORES.sizes(*bucket))] for bucket in GRID.buckets}
    steps = planner.plan(lengths)
    planning = microseconds(lambda: planner.plan(lengths))
    following = microseconds(
        lambda: execute(steps, requests, lengths, [IDS], [SCORES], takes_lengths=True, run=lambda b, _: answers[b])
    )
    return len(steps.runs), planning, following


def main() -> None:
    """Print a row for each number of requests."""
    torch.set_num_threads(1)
    planner = planner_for("sequence", GRID, CostModel.proportional(GRID))
    print("requests  runs  plan us  pad + unpad us")
    for count in (1, 8, 32, 128):
        runs, planning, following = measure(planner, count)
        print(f"{count:8}  {runs:4}  {planning:7.1f}  {following:14.1f}")


if __name__ == "__main__":
    main()
