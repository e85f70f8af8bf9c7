"""Choice of bucket lengths: geometric without data, the optimum for a histogram of lengths.

The optimum is quick to find, for this reason. Every sequence runs at the smallest bucket length that holds it. So
bucket boundaries cut the histogram, sorted by length, into intervals; the last length of an interval is its boundary.
Let N(i) be the number of sequences among the first i distinct lengths. Then the cheapest c boundaries for the first j
lengths compute

    best(c, j) = length(j) x N(j) + min over i < j of  best(c - 1, i) - length(j) x N(i)

timesteps. The minimum's i never falls as j grows: a larger i gains more from a longer length(j). So it is found for the
middle j first, which bounds it for those below and above: O(boundaries x lengths x log lengths) steps for the exact
optimum. All sums are integers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

Histogram = Mapping[int, int]
"""Number of sequences by length in timesteps. A count of 0 can make a length the longest without affecting costs."""

CostOfLength = Callable[[int], float]
"""Milliseconds of one sequence that is padded to a length."""

_SLACK = 8  # timesteps: about the overhead of a call, so padding by as many hardly matters
_HALVINGS = 64


def geometric_lengths(longest: int, count: int, slack: int = _SLACK) -> tuple[int, ...]:
    """Choose at most `count` lengths up to `longest` that bound the ratio of padding, for any traffic.

    No sequence of t timesteps is padded to more than factor x (t + slack) - slack. The factor is the smallest one for
    which `count` lengths are enough. A length is rounded down to three leading binary digits if the result is still
    above the previous length. `slack` prevents separate buckets for very short sequences, because a call has a cost of
    its own. The last length is `longest`.

    >>> geometric_lengths(longest=330, count=8)
    (6, 16, 32, 56, 96, 160, 256, 330)
    >>> geometric_lengths(longest=4, count=8)
    (1, 2, 3, 4)
    """
    low, high = 1.0, float(longest + slack)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reaches = _boundaries(middle, slack, longest, count)[-1] >= longest
        low, high = (low, middle) if reaches else (middle, high)
    return (*(length for length in _boundaries(high, slack, longest, count) if length < longest), longest)


def _boundaries(factor: float, slack: int, longest: int, count: int) -> list[int]:
    """The largest lengths that satisfy `factor`, until they reach `longest` or are `count`."""
    lengths = [0]
    while len(lengths) <= count and lengths[-1] < longest:
        shortest = lengths[-1] + 1
        farthest = max(shortest, int(factor * (shortest + slack)) - slack)
        rounded = _rounded_down(farthest)
        lengths.append(rounded if rounded >= shortest and farthest < longest else farthest)
    return lengths[1:]


def _rounded_down(size: int) -> int:
    """Round down to three leading binary digits.

    >>> [_rounded_down(size) for size in (7, 9, 13, 330)]
    [7, 8, 12, 320]
    """
    shift = max(0, size.bit_length() - 3)
    return size >> shift << shift


def optimal_lengths(histogram: Histogram, count: int) -> tuple[int, ...]:
    """Choose at most `count` lengths with the fewest timesteps to compute for the sequences of the histogram.

    They are lengths of the histogram, ascending, the longest among them. The result is deterministic, and has `count`
    lengths if as many occur.

    >>> optimal_lengths({3: 10, 4: 1, 20: 5, 21: 1}, count=2)
    (4, 21)

    Raises `ValueError`: no sequence, a length or `count` below 1, or a negative count.
    """
    lengths = _candidates(histogram)
    if count < 1:
        raise ValueError(f"the number of lengths must be 1 or more, got {count}")
    before = [0, *accumulate(histogram[length] for length in lengths)]
    best = [length * number for length, number in zip(lengths, before[1:], strict=True)]
    cuts: list[list[int]] = []  # cuts[layer][j] is the boundary before j
    for layer in range(1, min(count, len(lengths))):
        best, cut = _one_boundary_more(best, before, lengths, layer)
        cuts.append(cut)
    indices = [len(lengths) - 1]
    for cut in reversed(cuts):
        indices.append(cut[indices[-1]])
    return tuple(lengths[index] for index in reversed(indices))


def _candidates(histogram: Histogram) -> list[int]:
    """The lengths that may be boundaries: those that occur, and the longest."""
    for length, number in histogram.items():
        if length < 1 or number < 0:
            raise ValueError(f"expected lengths of 1 or more and counts of 0 or more, got {number} of length {length}")
    if not any(histogram.values()):
        raise ValueError("there is no sequence to choose lengths for")
    longest = max(histogram)
    return sorted(length for length, number in histogram.items() if number or length == longest)


def _one_boundary_more(
    best: Sequence[int], before: Sequence[int], lengths: Sequence[int], layer: int
) -> tuple[list[int], list[int]]:
    """`best[j]` for one boundary more, and the index of the boundary before j. Too few lengths are below `layer`."""
    result, cut = list(best), [0] * len(best)
    pending = [(layer, len(best), layer - 1, len(best) - 1)]  # of j, and of the boundary before it
    while pending:
        first, beyond, low, high = pending.pop()
        if first < beyond:
            j = (first + beyond) // 2
            places = range(low, min(high, j - 1) + 1)
            result[j], cut[j] = min((best[i] + lengths[j] * (before[j + 1] - before[i + 1]), i) for i in places)
            pending += [(first, j, low, cut[j]), (j + 1, beyond, cut[j], high)]
    return result, cut


def clip_histogram(histogram: Histogram, longest: int, *, truncate: bool) -> dict[int, int]:
    """Return the histogram of served sequences: those beyond `longest` are refused, or truncated to it.

    >>> clip_histogram({3: 5, 9: 2, 12: 1}, longest=8, truncate=False)
    {3: 5, 8: 0}
    >>> clip_histogram({3: 5, 9: 2, 12: 1}, longest=8, truncate=True)
    {3: 5, 8: 3}
    >>> clip_histogram({3: 5}, longest=8, truncate=True)
    {3: 5, 8: 0}
    """
    served = {length: number for length, number in sorted(histogram.items()) if length <= longest}
    beyond = sum(histogram.values()) - sum(served.values())
    served[longest] = served.get(longest, 0) + (beyond if truncate else 0)
    return served


@dataclass(frozen=True)
class PaddingStats:
    """Totals of a histogram whose sequences are each padded to the smallest length that holds them.

    >>> padding_stats({3: 1, 9: 2, 50: 1}, lengths=(4, 10))
    PaddingStats(useful=21, computed=24, refused=1)
    """

    useful: int
    """Number of real timesteps."""
    computed: int
    """Number of timesteps, padding included."""
    refused: int
    """Number of sequences longer than every length; the other totals exclude them."""

    @property
    def ratio(self) -> float:
        """Ratio of padded to computed timesteps; 0 if none are computed.

        >>> padding_stats({3: 1, 9: 2}, lengths=(4, 10)).ratio
        0.125
        """
        return 1 - self.useful / self.computed if self.computed else 0.0


def padding_stats(histogram: Histogram, lengths: Sequence[int]) -> PaddingStats:
    """Total the real and the computed timesteps of a histogram; `lengths` are ascending."""
    fitting = {length: number for length, number in histogram.items() if length <= lengths[-1]}
    return PaddingStats(
        useful=sum(length * number for length, number in fitting.items()),
        computed=sum(lengths[bisect_left(lengths, length)] * number for length, number in fitting.items()),
        refused=sum(histogram.values()) - sum(fitting.values()),
    )


def mean_cost(histogram: Histogram, lengths: Sequence[int], cost_of_length: CostOfLength) -> float:
    """Return the mean cost of the sequences that a length holds; 0 if there are none.

    >>> mean_cost({3: 1, 9: 3}, (4, 10), cost_of_length=lambda length: length / 2)
    4.25
    """
    fitting = {length: number for length, number in histogram.items() if length <= lengths[-1]}
    total = sum(number * cost_of_length(lengths[bisect_left(lengths, length)]) for length, number in fitting.items())
    return total / max(1, sum(fitting.values()))
