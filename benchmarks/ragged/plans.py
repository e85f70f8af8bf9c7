"""Floors of the planner that need no run: padding of tuned lengths, padding on a fixed grid."""

from __future__ import annotations

from torchserve_neuron_lstm.bucketing.bucket_lengths import clip_histogram, optimal_lengths
from torchserve_neuron_lstm.bucketing.bucketed_chunks import BucketedChunkPlanner
from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.histogram import read_lengths

from ..grids import SAMPLE, least_padding, percent
from .cases import LONGEST, log_normal_batches

CHUNKS = BucketGrid(batches=(1, 2, 4, 8, 16, 32), lengths=(3, 6, 9, 12, 18, 24, 36, 72))
"""A grid for an engine with fixed shapes only: six batch sizes by eight lengths of chunks."""


def beyond_optimum(count: int) -> float:
    """Percentage points of padding beyond the optimum of a plain dynamic program.

    The padding is that of `count` lengths tuned for the sample.
    """
    sample = clip_histogram(read_lengths(SAMPLE), LONGEST, truncate=False)
    return percent(sample, optimal_lengths(sample, count)) - least_padding(sample, count)


def wasted(cost: CostModel, batches: int = 40) -> float:
    """The padding ratio over log-normal batches of 32, in chunks of the fixed grid.

    `cost` has the measured costs of chunks; plans cost at most 5 % more than the cheapest.
    """
    planner = BucketedChunkPlanner(CHUNKS, CostModel({bucket: cost.of(bucket) for bucket in CHUNKS.buckets}), LONGEST)
    lengths = log_normal_batches(batches, 32, seed=0)
    return 1 - sum(map(sum, lengths)) / sum(planner.plan(batch).computed_timesteps for batch in lengths)
