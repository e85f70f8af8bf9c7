"""An archive on this machine: whole batches as they are served, beside what needs no planner."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import torch

from ...bucketing.errors import LengthNotAccepted, SequenceTooLong
from ...bucketing.plan import Plan, single_bucket_plan
from ...bucketing.shapes import Bucket, DynamicShape
from ...config.manifest import Manifest
from ...handlers.runtime.loader import LoadedArchive, load_archive, supported_shapes
from ..build.verify import item_sizes, random_tensor
from ..errors import PackagingError
from .gemm import gemm, gemm_gflops
from .timing import TimingConfig, on_threads, time_interleaved

SERVED, ALONE, PADDED = "as served", "one at a time", "one bucket for all"
_PLANNING, _GEMM = "planning", "GEMM"
_MOST_BATCHES = 16

Call = Callable[[], object]


@dataclass(frozen=True)
class PlannedBatch:
    """Requests that are answered by one plan: their tensors, their lengths, and how to plan them."""

    requests: Sequence[Sequence[torch.Tensor]]
    lengths: Sequence[int]
    plan: Callable[[Sequence[int]], Plan]


@dataclass(frozen=True)
class StrategyTiming:
    """One way to answer all batches."""

    seconds: tuple[float, ...]
    """Of all batches together, a value a round."""
    computed_timesteps: int
    """B x T of every call, padding included."""

    @property
    def took(self) -> float:
        """Seconds of all batches: the median of the rounds."""
        return median(self.seconds)


@dataclass(frozen=True)
class BenchmarkResult:
    """What was measured of an archive."""

    batches: tuple[tuple[int, ...], ...]
    """The lengths of each batch."""
    strategies: Mapping[str, StrategyTiming]
    plan_us: float
    """Microseconds of planning a batch, which `as served` contains."""
    gemm_gflops: float
    """What the machine's threads can do at best."""
    threads: int
    backend: str

    @property
    def requests(self) -> int:
        """In all batches."""
        return sum(map(len, self.batches))

    @property
    def timesteps(self) -> int:
        """The real ones of all batches."""
        return sum(map(sum, self.batches))

    def padding_ratio(self, way: str) -> float:
        """The share of the computed timesteps that is padding."""
        return 1 - self.timesteps / self.strategies[way].computed_timesteps


def sample_batches(histogram: Mapping[int, int], size: int, most: int = _MOST_BATCHES) -> tuple[tuple[int, ...], ...]:
    """Batches of `size` lengths in the proportions of a histogram, in a random order that is always the same.

    Each length is dealt as often as it was seen, up to `most` batches; the last one is filled from the beginning again.

    >>> sample_batches({5: 2, 9: 1}, size=2)
    ((5, 9), (5, 5))
    """
    rng = random.Random(0)  # noqa: S311 - nothing here is secret
    seen = sum(histogram.values())
    lengths = rng.sample(list(histogram), counts=list(histogram.values()), k=min(seen, most * size))
    dealt = cycle(lengths)
    return tuple(tuple(islice(dealt, size)) for _ in range(-(-len(lengths) // size)))


def measure_archive(
    directory: Path, batches: Sequence[Sequence[int]], threads: int | None, rounds: int
) -> BenchmarkResult:
    """Load an unpacked archive as a worker does and time it, with random inputs of these lengths.

    Raises:
        PackagingError: it cannot be loaded here, or does not serve one of the lengths.
    """
    try:
        variants = load_archive(directory, threads)
    except RuntimeError as error:  # the loader's, for the person who loads
        raise PackagingError(str(error)) from error
    serving = torch.get_num_threads()  # as the engine wants it
    accepted = tuple(tuple(_accepted(length, variants) for length in batch) for batch in batches)
    rng = torch.Generator().manual_seed(0)
    drawn = [[_request(variants.manifest, length, rng) for length in batch] for batch in accepted]
    ways = {name: list(steps) for name, steps in _ways(variants, drawn, accepted).items()}
    calls: dict[str, Call] = {name: on_threads(serving, _calling(variants, steps)) for name, steps in ways.items()}
    calls |= {
        _PLANNING: lambda: [variants.plan(batch) for batch in accepted],
        _GEMM: on_threads(variants.threads, gemm()),
    }
    seconds = time_interleaved(calls, TimingConfig(rounds))
    return BenchmarkResult(
        batches=accepted,
        strategies={name: StrategyTiming(seconds[name], _computed(steps)) for name, steps in ways.items()},
        plan_us=median(seconds[_PLANNING]) / len(accepted) * 1e6,
        gemm_gflops=gemm_gflops(seconds[_GEMM]),
        threads=variants.threads,
        backend=variants.manifest.backend,
    )


def _accepted(length: int, variants: LoadedArchive) -> int:
    """What is served of a sequence: less than all of it only where the archive cuts."""
    if variants.manifest.overflow == "truncate":
        length = min(length, variants.manifest.longest)
    try:
        variants.plan([length])
    except (SequenceTooLong, LengthNotAccepted) as error:
        raise PackagingError(f"this archive does not serve all of these lengths: {error}") from error
    return length


def _request(manifest: Manifest, length: int, rng: torch.Generator) -> list[torch.Tensor]:
    return [random_tensor(spec, item_sizes(spec, length), rng) for spec in manifest.inputs]


def _ways(
    variants: LoadedArchive, drawn: Sequence[Sequence[Sequence[torch.Tensor]]], batches: Sequence[Sequence[int]]
) -> dict[str, Iterator[PlannedBatch]]:
    """All batches as served, in single requests, and, where requests may be padded, in one bucket each."""
    pairs = list(zip(drawn, batches, strict=True))
    ways: dict[str, Iterator[PlannedBatch]] = {
        SERVED: (PlannedBatch(requests, lengths, variants.plan) for requests, lengths in pairs),
        ALONE: (
            PlannedBatch([request], [length], variants.plan)
            for requests, lengths in pairs
            for request, length in zip(requests, lengths, strict=True)
        ),
    }
    if variants.manifest.padding == "masked":
        ways[PADDED] = (step for requests, lengths in pairs for step in _padded(variants, requests, lengths))
    return ways


def _padded(
    variants: LoadedArchive, requests: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int]
) -> Iterator[PlannedBatch]:
    """One batch without a plan: in the order it came, in the smallest bucket that holds the longest request of all.

    A batch of more requests than that bucket can have rows takes several of it.
    """
    bucket = smallest_bucket(variants.manifest, len(lengths), max(lengths))
    for first in range(0, len(lengths), bucket.batch):
        part = slice(first, first + bucket.batch)
        yield PlannedBatch(
            requests[part], lengths[part], lambda own: single_bucket_plan(bucket, own, variants.manifest.kind)
        )


def smallest_bucket(manifest: Manifest, rows: int, longest: int) -> Bucket:
    """The smallest that holds as many rows as can be, and the longest of them or else a piece of it."""
    shapes = supported_shapes(manifest)
    if isinstance(shapes, DynamicShape):
        return Bucket(min(rows, shapes.batch), longest)
    batch = next((size for size in shapes.batches if size >= rows), shapes.batches[-1])
    return Bucket(batch, next((length for length in shapes.lengths if length >= longest), shapes.lengths[-1]))


def _calling(variants: LoadedArchive, steps: Sequence[PlannedBatch]) -> Call:
    def call() -> None:
        for step in steps:
            variants.run_plan(step.plan(step.lengths), step.requests, step.lengths)

    return call


def _computed(steps: Sequence[PlannedBatch]) -> int:
    return sum(step.plan(step.lengths).computed_timesteps for step in steps)
