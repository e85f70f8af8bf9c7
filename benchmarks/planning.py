"""Time of planning one batch, and padding of chunked plans over a fixed grid.

python -m benchmarks.planning

Lengths are log-normal like those of short texts: 26 timesteps in the mean, 330 at most. Costs are like those of an
LSTM of two layers, 128 -> 256, on two cores. The last table has the batches with the most possible plans: rows of up to
10,000 timesteps, noisy costs, and chunk lengths whose sums rarely meet.
"""

from __future__ import annotations

import random
import timeit
from collections.abc import Callable, Iterator
from functools import cache, partial
from statistics import mean, median

import torch

from torchserve_neuron_lstm.bucketing.bucketed_chunks import BucketedChunkPlanner
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.execute import execute
from torchserve_neuron_lstm.bucketing.planner import Planner, make_planner
from torchserve_neuron_lstm.bucketing.shapes import Bucket, BucketGrid, DynamicShape, TensorSpec

LONGEST = 330
SHAPE = DynamicShape(batch=32, length=LONGEST)
GRID = BucketGrid(batches=(1, 2, 4, 8, 16, 32), lengths=(8, 16, 24, 32, 48, 64, 128, LONGEST))
CHUNKS = BucketGrid(batches=(1, 2, 4, 8, 16, 32), lengths=(3, 6, 9, 12, 18, 24, 36, 72))
FINE_CHUNKS = BucketGrid(batches=(1, 2, 4, 8, 16, 32), lengths=(2, 4, 8, 12, 16, 24, 32, 64))
IDS = TensorSpec("ids", "int64", ("batch", "time"))
SCORES = TensorSpec("scores", "float32", ("batch", "time", 64))


def lstm_cost(grid: BucketGrid, call_ms: float) -> CostModel:
    """Costs of an LSTM: per call, per timestep for all rows together, and per timestep of each row."""
    return CostModel(
        {bucket: call_ms + bucket.length * (0.02 + 0.0088 * bucket.batch) for bucket in grid.buckets},
    )


MEASURED = BucketGrid(batches=(1, 2, 4, 8, 16, 32), lengths=(1, 8, 64))
PLANNERS: dict[str, Planner] = {
    "sequence, grid": make_planner("sequence", GRID, lstm_cost(GRID, 0.05)),
    "sequence, any shape": make_planner("sequence", SHAPE, lstm_cost(MEASURED, 0.05)),
    "chunk, grid": make_planner("chunk", CHUNKS, lstm_cost(CHUNKS, 0.05), longest=LONGEST),
    "chunk, any shape": make_planner("chunk", SHAPE, lstm_cost(MEASURED, 0.05)),
}
COSTS: dict[str, Callable[[BucketGrid], CostModel]] = {
    "a call takes 0.05 ms": lambda grid: lstm_cost(grid, 0.05),
    "a call takes 0.15 ms": lambda grid: lstm_cost(grid, 0.15),
    "the estimate": CostModel.proportional,
}


def text_lengths(count: int, seed: int) -> list[int]:
    """Random lengths of one batch of texts."""
    generator = random.Random(seed)
    return [min(LONGEST, max(1, int(generator.lognormvariate(3.0, 0.7)))) for _ in range(count)]


def microseconds(work: Callable[[], object]) -> float:
    """The best of several repetitions."""
    return min(timeit.repeat(work, number=20, repeat=9)) / 20 * 1e6


def planning_time(planner: Planner, count: int) -> float:
    """The mean microseconds of a plan over several batches."""
    return mean(microseconds(partial(planner.plan, text_lengths(count, seed))) for seed in range(5))


def padding_time(count: int) -> float:
    """Measure padding and unpadding beside the plan of the first planner."""
    lengths = text_lengths(count, 0)
    requests = [[torch.zeros(length, dtype=torch.int64)] for length in lengths]
    answers = {bucket: [torch.rand(SCORES.sizes(*bucket))] for bucket in GRID.buckets}
    plan = PLANNERS["sequence, grid"].plan(lengths)
    return microseconds(
        lambda: execute(plan, requests, lengths, [IDS], [SCORES], takes_lengths=True, run=lambda b, _: answers[b])
    )


def least_of_all(grid: BucketGrid, cost: CostModel, lengths: list[int]) -> float:
    """Return the milliseconds of the cheapest chunked plan over a grid, with any buckets."""
    milliseconds = {bucket: cost.of(bucket) for bucket in grid.buckets}
    longest_first = sorted(lengths, reverse=True)

    @cache
    def least(start: int, first: int, count: int) -> float:
        return min(started(start, first, count)) if count else 0.0

    def started(start: int, first: int, count: int) -> Iterator[float]:
        for batch in grid.batches:
            taken = min(batch, count)
            rest = least(start, first + taken, count - taken)
            yield min(
                milliseconds[Bucket(batch, length)] + least(start + length, first, active) + rest
                for length in grid.lengths
                for active in [sum(own > start + length for own in longest_first[first : first + taken])]
            )

    return least(0, 0, len(lengths))


def print_times() -> None:
    """Print a row for each number of requests."""
    print("microseconds a batch")
    print("requests  " + "".join(f"{name:>21}" for name in PLANNERS) + "   pad + unpad")
    for count in (1, 8, 32, 128, 512):
        times = "".join(f"{planning_time(planner, count):21.1f}" for planner in PLANNERS.values())
        print(f"{count:8}  {times}  {padding_time(count):12.1f}")


def print_waste(chunks: BucketGrid, batches: int = 40, compared: int = 4) -> None:
    """Print a row for each cost model.

    It has the padding of the cheapest plan, the padding of the chosen plan, and the cost of the chosen plan.
    """
    print(f"\nbatches of 32, chunks of {', '.join(map(str, chunks.lengths))} timesteps")
    print(f"{'':22}  waste of the cheapest   waste   cost to the cheapest   cheapest to the best there is")
    all_lengths = [text_lengths(32, seed) for seed in range(batches)]
    useful = sum(map(sum, all_lengths))
    for name, make in COSTS.items():
        cost = make(chunks)
        planner, frugal = BucketedChunkPlanner(chunks, cost, tolerance=0), BucketedChunkPlanner(chunks, cost)
        cheapest, taken = [[one.plan(own) for own in all_lengths] for one in (planner, frugal)]
        wasted = [1 - useful / sum(plan.computed_timesteps for plan in plans) for plans in (cheapest, taken)]
        paid = [sum(plan.milliseconds(cost) for plan in plans) for plans in (cheapest, taken)]
        best = sum(least_of_all(chunks, cost, own) for own in all_lengths[:compared])
        loss = sum(plan.milliseconds(cost) for plan in cheapest[:compared]) / best - 1
        print(f"{name:22}  {wasted[0]:20.1%}  {wasted[1]:6.1%}  {paid[1] / paid[0] - 1:+20.1%}  {loss:+30.2%}")


def print_long(seeds: int = 5) -> None:
    """Print a row for each grid: the time of a plan, and the number of calls."""
    print(f"\n{'rows to 10,000 timesteps':40}  median ms  worst ms   calls")
    for batches in ((1, 8, 32), (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64)):
        grid = BucketGrid(batches, (7, 61, 199))
        times, calls = [], 0
        for seed in range(seeds):
            generator = random.Random(seed)
            smooth = lstm_cost(grid, 0.05)
            noisy = CostModel({bucket: smooth.of(bucket) * generator.uniform(0.5, 1.5) for bucket in grid.buckets})
            planner = BucketedChunkPlanner(grid, noisy)
            lengths = [generator.randint(1, 10_000) for _ in range(batches[-1])]
            times.append(min(timeit.repeat(partial(planner.plan, lengths), number=1, repeat=3)) * 1e3)
            calls = max(calls, len(planner.plan(lengths).calls))
        print(
            f"{batches[-1]:3} on {len(grid.buckets):2} buckets{'':24}  {median(times):9.1f} {max(times):9.1f} {calls:7}"
        )


def main() -> None:
    """Print all tables."""
    torch.set_num_threads(1)
    print_times()
    print_long()
    print_waste(CHUNKS)
    print_waste(FINE_CHUNKS)


if __name__ == "__main__":
    main()
