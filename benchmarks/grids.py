"""Padding of bucket lengths on the log-normal sample: common choices, and lengths for the sample.

python -m benchmarks.grids

The lengths chosen for the sample are compared with a plain dynamic program, and must come within 0.1 point of
its optimum (they are the optimum). "fresh" is the padding on another sample of the same traffic, for which no lengths
were chosen. Exits 1 if the optimum is missed.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from torchserve_neuron_lstm.bucketing.bucket_lengths import (
    Histogram,
    clip_histogram,
    geometric_lengths,
    optimal_lengths,
    padding_stats,
)
from torchserve_neuron_lstm.config.histogram import read_lengths

SAMPLE = Path(__file__).parents[1] / "examples" / "lengths" / "lognormal.txt"
LONGEST = 330
COUNTS = (4, 6, 8, 12, 16, 24)
HELD = (8, 16)
ALLOWED = 0.1  # points of padding
POWERS_OF_TWO = (16, 32, 64, 128, 256, LONGEST)


def fresh_sample() -> Histogram:
    """As many sequences as in the sample, drawn from the same distribution."""
    generator = random.Random(1)
    return Counter(min(LONGEST, max(1, int(generator.lognormvariate(3.0, 0.7)))) for _ in range(10_000))


def least_padding(histogram: Histogram, count: int) -> float:
    """The least possible padding, in percent, by a plain dynamic program over every pair of lengths."""
    lengths = sorted(histogram)
    before = [0, *accumulate(histogram[length] for length in lengths)]
    best: list[float] = [0.0] + [math.inf] * len(lengths)
    for _ in range(count):
        best = [0.0] + [
            min(best[cut] + lengths[last - 1] * (before[last] - before[cut]) for cut in range(last))
            for last in range(1, len(best))
        ]
    return 100 * (1 - sum(length * number for length, number in histogram.items()) / best[-1])


def percent(histogram: Histogram, lengths: Sequence[int]) -> float:
    """Padding as a percentage of all computed timesteps."""
    return 100 * padding_stats(histogram, lengths).ratio


def row(name: str, lengths: Sequence[int], seen: Histogram, fresh: Histogram) -> str:
    """Number of lengths, how they were found, and their padding on both samples."""
    return f"{len(lengths):7}  {name:<13}  {percent(seen, lengths):5.1f} %  {percent(fresh, lengths):5.1f} %"


def main() -> int:
    """Print a row for each grid. Returns the exit code."""
    seen, fresh = clip_histogram(read_lengths(SAMPLE), LONGEST, truncate=False), fresh_sample()
    print("lengths                 padding    fresh  optimum  chosen in")
    print(row("powers of two", POWERS_OF_TWO, seen, fresh))
    for count in COUNTS:
        print(row("geometric", geometric_lengths(LONGEST, count), seen, fresh))
    missed = []
    for count in COUNTS:
        began = time.perf_counter()
        lengths = optimal_lengths(seen, count)
        milliseconds = 1000 * (time.perf_counter() - began)
        least = least_padding(seen, count)
        print(f"{row('tuned', lengths, seen, fresh)}  {least:5.1f} %  {milliseconds:6.1f} ms")
        if count in HELD and percent(seen, lengths) > least + ALLOWED:
            missed.append(f"missed: {count} lengths leave more than {ALLOWED} point beyond the optimum")
    print("".join(f"{line}\n" for line in missed), end="")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
