"""Assessment of timed calls: their cost, and whether it is reliable.

Other work on a machine makes calls longer, some or all of them. It shows in two ways: threads of the process wait for a
core, or the same call takes another time later. A program of two threads of which one has no core may take ten times
as long each time, so that only the waiting tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple, Optional

from ...bucketing.cost_contradictions import NOISE, Contradiction, contradictions
from ...bucketing.shapes import Bucket, ProgramRole

_MAX_WAITING_SHARE = 0.1
"""Largest share of its time for which an undisturbed slice waits for cores, over all threads."""
_MIN_AGREEING_SLICES = 2
"""Undisturbed slices that must show about the same cost."""
_MAX_REPORTED = 2
"""Contradictions that are reported."""


class CostKey(NamedTuple):
    """One measured cost: of a full call or, `padded`, of one with as much padding as possible."""

    part: ProgramRole
    bucket: Bucket
    padded: bool = False

    def __str__(self) -> str:
        return f"{self.part} {self.bucket.batch} x {self.bucket.length}{' with padding' if self.padded else ''}"


class Slice(NamedTuple):
    """Calls of one program in a row."""

    shortest_ms: float
    """The shortest of the calls."""
    wall_ms: float
    """All calls together."""
    waited_ms: float
    """Milliseconds for which threads of the process waited for a core during the calls, added up."""

    @property
    def waiting(self) -> float:
        """Time that was waited for cores, relative to the time of the calls."""
        return self.waited_ms / self.wall_ms if self.wall_ms > 0 else 0.0

    @property
    def is_undisturbed(self) -> bool:
        """Whether the threads had the cores that they were ready to run on."""
        return self.waiting <= _MAX_WAITING_SHARE


def cost_ms(slices: Sequence[Slice]) -> float:
    """Return the shortest call of the undisturbed slices; of all slices if each was disturbed.

    >>> cost_ms([Slice(0.5, 2.0, 0.0), Slice(0.4, 2.0, 1.9), Slice(0.6, 2.0, 0.1)])
    0.5
    """
    return min(one.shortest_ms for one in [one for one in slices if one.is_undisturbed] or slices)


def is_settled(slices: Sequence[Slice]) -> bool:
    """Whether at least two slices were undisturbed and show about the same cost.

    >>> is_settled([Slice(0.5, 2.0, 0.0), Slice(0.52, 2.0, 0.1)])
    True
    >>> is_settled([Slice(0.5, 2.0, 0.0), Slice(4.0, 4.0, 4.0)])
    False
    """
    undisturbed = [one.shortest_ms for one in slices if one.is_undisturbed]
    return len([ms for ms in undisturbed if ms <= NOISE * min(undisturbed)]) >= _MIN_AGREEING_SLICES


def contradicting(costs: Mapping[CostKey, float]) -> list[tuple[CostKey, CostKey, Contradiction]]:
    """Find the costs that contradict each other within one program, the largest ratio first."""
    groups: dict[tuple[ProgramRole, bool], dict[Bucket, float]] = {}
    for key, milliseconds in costs.items():
        groups.setdefault((key.part, key.padded), {})[key.bucket] = milliseconds
    found = [
        (CostKey(part, one.smaller, padded), CostKey(part, one.larger, padded), one)
        for (part, padded), own in groups.items()
        for one in contradictions(own)
    ]
    return sorted(found, key=lambda pair: pair[2].larger_ms / pair[2].smaller_ms)


def doubts(slices: Mapping[CostKey, Sequence[Slice]]) -> tuple[str, ...]:
    """Say why the costs that these slices show are unreliable; nothing if they are reliable."""
    reasons = (_waiting(slices), _varying(slices))
    costs = {key: cost_ms(own) for key, own in slices.items()}
    return (*(one for one in reasons if one is not None), *contradiction_doubts(costs))


def contradiction_doubts(costs: Mapping[CostKey, float]) -> tuple[str, ...]:
    """Say which costs contradict each other, the worst first.

    >>> contradiction_doubts({CostKey("chunk", Bucket(1, 32)): 0.62, CostKey("chunk", Bucket(8, 32)): 0.2})
    ('chunk 1 x 32 took 0.620 ms, more than 8 x 32 with 0.200 ms',)
    """
    found = contradicting(costs)
    reasons = tuple(
        f"{smaller} took {one.smaller_ms:.3f} ms, more than {one.larger.batch} x {one.larger.length} with "
        f"{one.larger_ms:.3f} ms"
        for smaller, _, one in found[:_MAX_REPORTED]
    )
    left = len(found) - len(reasons)
    return (*reasons, f"{left} more costs contradict others") if left else reasons


def _waiting(slices: Mapping[CostKey, Sequence[Slice]]) -> Optional[str]:
    waiting = {
        key: median(one.waiting for one in own)
        for key, own in slices.items()
        if sum(one.is_undisturbed for one in own) < _MIN_AGREEING_SLICES
    }
    if not waiting:
        return None
    worst = max(waiting, key=waiting.__getitem__)
    return (
        f"{len(waiting)} of {len(slices)} costs were measured while threads waited for cores (all threads together "
        f"{waiting[worst]:.0%} of the time of {worst}): other processes used the cores, or there are fewer cores than "
        "threads"
    )


def _varying(slices: Mapping[CostKey, Sequence[Slice]]) -> Optional[str]:
    varying = [
        key
        for key, own in slices.items()
        if not is_settled(own) and sum(one.is_undisturbed for one in own) >= _MIN_AGREEING_SLICES
    ]
    if not varying:
        return None
    times = [one.shortest_ms for one in slices[varying[0]] if one.is_undisturbed]
    return (
        f"{len(varying)} of {len(slices)} costs took another time at each measurement ({varying[0]} from "
        f"{min(times):.3f} to {max(times):.3f} ms)"
    )
