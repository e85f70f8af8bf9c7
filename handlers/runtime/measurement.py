"""Measured costs of an archive's programs: calls in full buckets, timed in rounds in which they take turns.

Other work on the machine only makes a call longer. So the time of a call is its shortest one, and rounds go on, for a
bounded time, until several of them agree about it. Medians would not do: while other programs keep the cores busy, the
threads of a call wait for each other in most calls, but not in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple, TypeVar

from ...bucketing.execute_chunks import ChunkedExecution
from ...bucketing.padding import padding_tensor
from ...bucketing.plan import single_bucket_plan
from ...bucketing.shapes import Bucket, ProgramRole
from .loader import LoadedArchive, example_inputs

Call = Callable[[], object]
Report = Callable[[int, int, str], None]
"""Function of the number of measured calls, the number of calls, and a description."""

KeyT = TypeVar("KeyT")


class CostKey(NamedTuple):
    """One measured cost: of a full call or, `padded`, of one with as much padding as possible."""

    part: ProgramRole
    bucket: Bucket
    padded: bool = False

    def __str__(self) -> str:
        return f"{self.part} {self.bucket.batch} x {self.bucket.length}{' with padding' if self.padded else ''}"


@dataclass(frozen=True)
class Effort:
    """Durations of a measurement."""

    budget_ms: float = 20.0
    """Milliseconds of timed calls of each key."""
    fewest: int = 3
    """Rounds of each key."""
    turn_ms: float = 1.5
    """Milliseconds of timed calls in a turn, at least one call."""
    repeated: float = 2.0
    """Most time of the rounds for calls that vary, relative to that of the rounds before them."""
    repeated_ms: float = 1500.0
    """Most milliseconds of these rounds."""
    agreement: float = 1.25
    """Largest ratio of the times of turns that agree."""
    agreeing: int = 2
    """Turns that must agree about the shortest time."""
    wakes: bool = False
    """Whether an untimed call precedes every turn, not only the first.

    It finds the threads of the engine before still waiting for work, and caches without its weights.
    """
    together: bool = False
    """Whether all calls have further rounds while some vary, so that none has its turns at quieter times."""


def measure(
    calls: Mapping[KeyT, Call],
    effort: Effort = Effort(),
    clock: Callable[[], float] = time.perf_counter,
    report: Report = lambda done, total, text: None,
) -> dict[KeyT, tuple[float, ...]]:
    """Time each call in rounds; returns the milliseconds of the shortest call in each of its turns.

    The minimum of them is the cost. The first call of each key is not timed. Every other round is in reverse order, so
    that no call always follows the same one.
    """
    began = clock()
    turns: dict[KeyT, list[float]] = {key: [] for key in calls}
    timed_ms = dict.fromkeys(calls, 0.0)
    is_reversed = False

    def elapsed_ms() -> float:
        return 1000 * (clock() - began)

    def take_turns(keys: Sequence[KeyT]) -> None:
        nonlocal is_reversed
        for key in reversed(keys) if is_reversed else keys:
            if effort.wakes or not turns[key]:
                calls[key]()
            shortest, together = _take_turn(calls[key], effort.turn_ms, clock)
            turns[key].append(shortest)
            timed_ms[key] += together
        is_reversed = not is_reversed

    def is_short(key: KeyT) -> bool:
        return len(turns[key]) < effort.fewest or timed_ms[key] < effort.budget_ms

    while pending := [key for key in calls if is_short(key)]:
        take_turns(pending)
        report(sum(not is_short(key) for key in calls), len(calls), str(pending[-1]))
    until = elapsed_ms() + min(effort.repeated * elapsed_ms(), effort.repeated_ms)
    while (varying := [key for key in calls if not _agree(turns[key], effort)]) and elapsed_ms() < until:
        take_turns(list(calls) if effort.together else varying)
    return {key: tuple(times) for key, times in turns.items()}


def spread(measured: Mapping[KeyT, Sequence[float]]) -> float:
    """Return the ratio of a median turn to the shortest, of the median call: 1 on a quiet machine.

    >>> spread({"a": (1.0, 1.2, 4.0), "b": (2.0, 2.0, 2.0), "c": (1.0, 3.0, 3.0)})
    1.2
    """
    return median(median(times) / min(times) for times in measured.values())


def call_of(archive: LoadedArchive, key: CostKey) -> Call:
    """Return one call with every row at the bucket's full length; a chunk hands on its carry.

    Padded, one row has all timesteps and the others have one: for an engine that stops each row at its own end, this
    shows what padding costs.
    """
    part, bucket, padded = key
    if part == "chunk":
        return _advance(archive, bucket)
    return partial(archive.run, part, bucket, example_inputs(archive.manifest, part, bucket, padded=padded))


def _take_turn(call: Call, least_ms: float, clock: Callable[[], float]) -> tuple[float, float]:
    """Call for at least `least_ms`; returns the milliseconds of the shortest call, and of all."""
    times: list[float] = []
    while sum(times) < least_ms:
        started = clock()
        call()
        times.append(1000 * (clock() - started))
    return min(times), sum(times)


def _agree(times: Sequence[float], effort: Effort) -> bool:
    """Return whether several turns took about as long as the shortest.

    >>> _agree([0.5, 0.52, 4.0], Effort()), _agree([0.5, 4.0, 4.0], Effort())
    (True, False)
    """
    return sum(milliseconds <= effort.agreement * min(times) for milliseconds in times) >= effort.agreeing


def _advance(archive: LoadedArchive, bucket: Bucket) -> Call:
    lengths = [2 * bucket.length] * bucket.batch
    plan = single_bucket_plan(bucket, lengths, "chunk")
    item = [padding_tensor(spec, lengths[0]) for spec in archive.manifest.inputs]
    signature, chain = archive.chunk_signature, archive.chain
    batch = ChunkedExecution(plan, [item] * bucket.batch, lengths, signature, archive.run, chain=chain)
    return partial(batch.run_chunks, plan.calls[:1])
