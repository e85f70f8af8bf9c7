"""Timing of an archive on this machine: planned batches, beside one request at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice
from statistics import median

import torch

from ...backends.registry import get_backend
from ...bucketing.errors import SequenceTooLong
from ...config.manifest import CostMeasurement
from ...handlers.runtime.loader import LoadedArchive
from ...handlers.runtime.measurement import Call, Effort, measure, spread
from ..errors import refusing
from ..evaluation.verification_cases import draw_inputs
from ..torch_threads import on_threads

SERVED, ALONE = "as served", "one at a time"
_PLANNING = "planning"
_LARGEST_SPREAD = 1.25
_EFFORT = Effort(budget_ms=400, turn_ms=60, wakes=True, together=True)
"""Each turn begins with a call that wakes the engine's threads, and all take turns while some vary."""

Request = Sequence[torch.Tensor]
Batch = tuple[Sequence[Request], Sequence[int]]
"""Requests that are planned together, and their lengths."""


@dataclass(frozen=True)
class StrategyTiming:
    """Timing of one strategy for all batches."""

    seconds: tuple[float, ...]
    """Seconds of all batches together, one value per turn."""
    bucket_timesteps: int
    """Sum of B x T over all calls, padding included."""

    @property
    def median_seconds(self) -> float:
        """Median over the turns of the seconds of all batches."""
        return median(self.seconds)


@dataclass(frozen=True)
class BenchmarkResult:
    """Measurements of an archive."""

    batches: tuple[tuple[int, ...], ...]
    """The lengths of each batch."""
    strategies: Mapping[str, StrategyTiming]
    plan_us: float
    """Microseconds of planning a batch, which are part of `as served`."""
    threads: int
    backend: str
    stops_rows: bool
    """Whether recurrent layers stop each row at its own end, so that they compute no padding."""
    varying: tuple[str, ...]
    """Names of the strategies whose turns took different times."""
    measurement: CostMeasurement | None
    """Conditions of the costs by which batches are planned."""

    @property
    def requests(self) -> int:
        """Number of requests in all batches."""
        return sum(map(len, self.batches))

    @property
    def timesteps(self) -> int:
        """Number of real timesteps in all batches."""
        return sum(map(sum, self.batches))

    def padding_ratio(self, strategy: str) -> float:
        """Return the share of the timesteps that recurrent layers compute which is padding."""
        return 0.0 if self.stops_rows else 1 - self.timesteps / self.strategies[strategy].bucket_timesteps


def sample_batches(histogram: Mapping[int, int], size: int, most: int = 16) -> tuple[tuple[int, ...], ...]:
    """Sample batches of `size` lengths in the proportions of a histogram, in a fixed random order.

    Each length is used as often as it was observed, up to `most` batches; the last one is filled from the start again.

    >>> sample_batches({5: 2, 9: 1}, size=2)
    ((5, 9), (5, 5))
    """
    rng = random.Random(0)  # noqa: S311 - nothing here is secret
    seen = sum(histogram.values())
    lengths = rng.sample(list(histogram), counts=list(histogram.values()), k=min(seen, most * size))
    dealt = cycle(lengths)
    return tuple(tuple(islice(dealt, size)) for _ in range(-(-len(lengths) // size)))


def measure_archive(archive: LoadedArchive, batches: Sequence[Sequence[int]]) -> BenchmarkResult:
    """Time an archive with random inputs of these lengths.

    Raises `PackagingError`: it does not serve one of the lengths.
    """
    serving = torch.get_num_threads()  # as the engine set it
    accepted = tuple(tuple(_accepted(length, archive) for length in batch) for batch in batches)
    rng = torch.Generator().manual_seed(0)
    drawn = [[draw_inputs(archive.manifest.inputs, length, rng) for length in batch] for batch in accepted]
    strategies: dict[str, list[Batch]] = {
        SERVED: list(zip(drawn, accepted, strict=True)),
        ALONE: [([request], [length]) for request, length in zip(chain(*drawn), chain(*accepted), strict=True)],
    }
    calls: dict[str, Call] = {
        **{name: on_threads(serving, partial(_run, archive, planned)) for name, planned in strategies.items()},
        _PLANNING: lambda: [archive.plan(batch) for batch in accepted],
    }
    seconds = {name: tuple(ms / 1000 for ms in turns) for name, turns in measure(calls, _EFFORT).items()}
    return BenchmarkResult(
        batches=accepted,
        strategies={
            name: StrategyTiming(seconds[name], sum(archive.plan(lengths).computed_timesteps for _, lengths in planned))
            for name, planned in strategies.items()
        },
        plan_us=median(seconds[_PLANNING]) / len(accepted) * 1e6,
        threads=archive.threads,
        backend=archive.manifest.backend,
        stops_rows=get_backend(archive.manifest.backend).ragged and archive.manifest.takes_lengths,
        varying=tuple(name for name, times in seconds.items() if spread({name: times}) > _LARGEST_SPREAD),
        measurement=archive.manifest.measurement,
    )


def _accepted(length: int, archive: LoadedArchive) -> int:
    """The number of served timesteps: fewer than `length` if the archive truncates."""
    if archive.manifest.overflow == "truncate":
        length = min(length, archive.manifest.longest)
    with refusing(SequenceTooLong, "this archive does not serve all of these lengths: "):
        archive.plan([length])
    return length


def _run(archive: LoadedArchive, batches: Sequence[Batch]) -> None:
    for requests, lengths in batches:
        archive.run_plan(archive.plan(lengths), requests, lengths)
