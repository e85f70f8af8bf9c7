"""Lower bound of an engine's time, measured before anything is compiled for it.

The bound holds for every plan of its batches. A batch takes at least the time of its longest row alone, and at least
its share of the full call with most rows. Calls of fewer timesteps count in proportion, without what each call costs by
itself; the operators between the measured ones count nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch

from ...backends.interface import Backend
from ...bucketing.shapes import Bucket
from ...config.manifest import Manifest
from ...handlers.runtime.example_inputs import example_inputs
from ...handlers.runtime.measurement import Call
from ..torch_threads import on_threads
from .candidate import Candidate
from .compared_batches import compared_batches


@runtime_checkable
class LowerBounded(Backend, Protocol):
    """An engine whose programs call some of torch's operators as they are: a lower bound of their time."""

    def lower_bound(
        self, program: torch.export.ExportedProgram, inputs: Sequence[torch.Tensor]
    ) -> Callable[[], object] | None:
        """Return a function that computes only these operators, as one call with `inputs` would do.

        Takes seconds at most. Returns None if the program has none of these operators.
        """


def lower_bound_calls(
    candidate: Candidate, manifest: Manifest, buckets: Sequence[Bucket], threads: int
) -> dict[Bucket, Call]:
    """Return the calls that bound a full call in each bucket; none if the engine has no bounds.

    `manifest` is that of any engine that serves the model.
    """
    engine, calls = candidate.engine, dict[Bucket, Call]()
    if isinstance(engine, LowerBounded):
        for bucket in buckets:
            call = engine.lower_bound(candidate.program.exported, example_inputs(manifest, "sequence", bucket))
            if call is not None:
                calls[bucket] = on_threads(threads, call)
    return calls


def least_total_ms(manifest: Manifest, bounds: Mapping[Bucket, float]) -> float:
    """Return the milliseconds that one batch of each size takes at least.

    `bounds` are those of full calls of one length.
    """
    return sum(least_ms(lengths, bounds) for lengths in compared_batches(manifest))


def least_ms(lengths: Sequence[int], bounds: Mapping[Bucket, float]) -> float:
    """Return the milliseconds that one batch takes at least.

    >>> bounds = {Bucket(1, 10): 3.0, Bucket(8, 10): 4.0}
    >>> least_ms([5], bounds), least_ms([10] * 16, bounds), least_ms([10, 1, 1], bounds)
    (1.5, 8.0, 3.0)
    """
    largest = max(bounds, key=lambda bucket: bucket.batch)
    longest_row = min(bounds.values()) * max(lengths) / largest.length
    return max(longest_row, bounds[largest] * sum(lengths) / (largest.batch * largest.length))
