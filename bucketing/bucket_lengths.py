"""Which lengths a grid should have: evenly in proportion without data, the cheapest ones for a histogram of lengths.

Why the optimum is quick to find. Every sequence runs at the smallest edge that holds it, so edges cut the histogram,
sorted by length, into stretches, and the last length of a stretch is its edge. Let N(i) be the number of sequences
among the first i distinct lengths. Then the cheapest c edges for the first j lengths cost

    best(c, j) = cost(j) x N(j) + min over i < j of  best(c - 1, i) - cost(j) x N(i)

and what is minimised is, for each i, a line in cost(j). With the lower envelope of these lines an edge is found by
bisection: O(edges x lengths x log lengths) for the exact optimum, whatever the costs are. All sums are whole numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import isfinite, lcm

from .cost import CostModel
from .shapes import Bucket

Histogram = Mapping[int, int]
"""How many sequences have each length (timesteps). A count of 0 makes a length the longest without giving it weight."""

CostOfLength = Callable[[int], float]
"""What one sequence costs that is padded to a length, in any unit."""

_SPARE = 8  # timesteps: about what a call costs by itself, and so padding that hardly shows
_HALVINGS = 64


def cost_in_timesteps(length: int) -> int:
    """The cost that counts timesteps, padding included."""
    return length


def cost_per_row(cost: CostModel, rows: int) -> CostOfLength:
    """The milliseconds of one sequence that shares a call with as many others as have place in it.

    >>> cost_per_row(CostModel({Bucket(8, 10): 2.0, Bucket(8, 30): 4.0}), rows=8)(20)
    0.375
    """
    return lambda length: cost.of(Bucket(rows, length)) / rows


def geometric_lengths(longest: int, count: int, spare: int = _SPARE) -> tuple[int, ...]:
    """At most `count` lengths up to `longest` that limit the padding in proportion, for any traffic.

    No sequence of t timesteps is padded to more than factor x (t + spare) - spare, with the smallest factor for which
    `count` lengths are enough, rounded down to three leading binary digits where that leaves one. `spare` keeps very
    short sequences from getting edges of their own, for a call costs something too. The last length is `longest`.

    >>> geometric_lengths(longest=330, count=8)
    (6, 16, 32, 56, 96, 160, 256, 330)
    >>> geometric_lengths(longest=4, count=8)
    (1, 2, 3, 4)

    Raises:
        ValueError: `longest` or `count` is below 1.
    """
    if longest < 1 or count < 1:
        raise ValueError(f"the longest and the number of lengths must be 1 or more, got {longest} and {count}")
    low, high = 1.0, float(longest + spare)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reaches = _steps(middle, spare, longest, count)[-1] >= longest
        low, high = (low, middle) if reaches else (middle, high)
    return (*(edge for edge in _steps(high, spare, longest, count) if edge < longest), longest)


def _steps(factor: float, spare: int, longest: int, count: int) -> list[int]:
    """The farthest edges that keep to `factor`, until they reach `longest` or are `count`."""
    edges = [0]
    while len(edges) <= count and edges[-1] < longest:
        shortest = edges[-1] + 1
        farthest = max(shortest, int(factor * (shortest + spare)) - spare)
        rounded = _rounded_down(farthest)
        edges.append(rounded if rounded >= shortest and farthest < longest else farthest)
    return edges[1:]


def _rounded_down(size: int) -> int:
    """With three leading binary digits.

    >>> [_rounded_down(size) for size in (7, 9, 13, 330)]
    [7, 8, 12, 320]
    """
    shift = max(0, size.bit_length() - 3)
    return size >> shift << shift


def optimal_lengths(
    histogram: Histogram, count: int, cost_of_length: CostOfLength = cost_in_timesteps
) -> tuple[int, ...]:
    """The lengths, `count` at most, at which all sequences of the histogram together cost least.

    They are lengths of the histogram, ascending, the longest among them. Of several cheapest sets it is one with the
    fewest lengths, and always the same one.

    >>> optimal_lengths({3: 10, 4: 1, 20: 5, 21: 1}, count=2)
    (4, 21)

    Raises:
        ValueError: no sequence, a length or `count` below 1, a negative count, or a cost that is no positive number.
    """
    edges = _candidates(histogram)
    if count < 1:
        raise ValueError(f"the number of lengths must be 1 or more, got {count}")
    before = [0, *accumulate(histogram[edge] for edge in edges)]
    prices = _whole_numbers(edges, cost_of_length)
    best = [price * number for price, number in zip(prices, before[1:], strict=True)]
    cuts: list[list[int]] = []
    cheapest, cheapest_layer = best[-1], 0
    for layer in range(1, min(count, len(edges))):
        best, cut = _one_edge_more(best, before, prices, layer)
        cuts.append(cut)
        if best[-1] < cheapest:
            cheapest, cheapest_layer = best[-1], layer
    return tuple(edges[index] for index in _followed(cuts[:cheapest_layer], len(edges) - 1))


def _candidates(histogram: Histogram) -> list[int]:
    """The lengths that may be edges: those that occur, and the longest."""
    for length, number in histogram.items():
        if length < 1 or number < 0:
            raise ValueError(f"expected lengths of 1 or more and counts of 0 or more, got {number} of length {length}")
    if not any(histogram.values()):
        raise ValueError("there is no sequence to choose lengths for")
    longest = max(histogram)
    return sorted(length for length, number in histogram.items() if number or length == longest)


def _whole_numbers(edges: Iterable[int], cost_of_length: CostOfLength) -> list[int]:
    """The costs in a unit that all of them are whole multiples of: their sums are exact, in any order."""
    exact = []
    for edge in edges:
        cost = cost_of_length(edge)
        if not (isfinite(cost) and cost > 0):
            raise ValueError(f"the cost of length {edge} must be a positive number, got {cost}")
        exact.append(Fraction(cost))
    unit = lcm(*(cost.denominator for cost in exact))
    return [cost.numerator * (unit // cost.denominator) for cost in exact]


def _one_edge_more(
    best: Sequence[int], before: Sequence[int], prices: Sequence[int], layer: int
) -> tuple[list[int], list[int]]:
    """`best[j]` for one edge more, and the place of the edge before j. Places below `layer` have too few lengths.

    The line of place i is best[i] - price x before[i + 1]. As these fall more and more steeply, a new one is the
    lowest from some price on for good: `starts` are the first whole prices at which each line of the envelope is.
    """
    result, cut = list(best), [0] * len(best)
    lines: list[int] = []
    starts: list[int] = []
    for place in range(layer, len(best)):
        _add_line(place - 1, best, before, lines, starts)
        line = lines[bisect_right(starts, prices[place]) - 1]
        result[place] = best[line] + prices[place] * (before[place + 1] - before[line + 1])
        cut[place] = line
    return result, cut


def _add_line(place: int, best: Sequence[int], before: Sequence[int], lines: list[int], starts: list[int]) -> None:
    start = 0
    while lines:
        last = lines[-1]
        start = (best[place] - best[last]) // (before[place + 1] - before[last + 1]) + 1
        if start > starts[-1]:
            break
        lines.pop()
        starts.pop()
        start = 0
    lines.append(place)
    starts.append(start)


def _followed(cuts: Sequence[Sequence[int]], last: int) -> list[int]:
    places = [last]
    for cut in reversed(cuts):
        places.append(cut[places[-1]])
    return places[::-1]


def clip_histogram(histogram: Histogram, longest: int, *, truncate: bool) -> dict[int, int]:
    """What is served of a histogram where `longest` is the longest length: longer sequences are refused, or cut to it.

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
    """What a histogram of sequences comes to at given lengths, each padded to the smallest that holds it.

    >>> padding_stats({3: 1, 9: 2, 50: 1}, lengths=(4, 10))
    Padding(useful=21, computed=24, refused=1)
    """

    useful: int
    """Real timesteps."""
    computed: int
    """Timesteps with padding."""
    refused: int
    """Sequences that no length holds; they are not counted otherwise."""

    @property
    def ratio(self) -> float:
        """The waste: padded timesteps, as a part of all that are computed. 0 where nothing is.

        >>> padding_stats({3: 1, 9: 2}, lengths=(4, 10)).share
        0.125
        """
        return 1 - self.useful / self.computed if self.computed else 0.0


def padding_stats(histogram: Histogram, lengths: Sequence[int]) -> PaddingStats:
    """The useful and the padded timesteps of a histogram; `lengths` are ascending."""
    fitting = {length: number for length, number in histogram.items() if length <= lengths[-1]}
    return PaddingStats(
        useful=sum(length * number for length, number in fitting.items()),
        computed=sum(lengths[bisect_left(lengths, length)] * number for length, number in fitting.items()),
        refused=sum(histogram.values()) - sum(fitting.values()),
    )


def mean_cost(histogram: Histogram, lengths: Sequence[int], cost_of_length: CostOfLength) -> float:
    """What a sequence costs on average, of those that a length holds; 0 where there are none.

    >>> mean_cost({3: 1, 9: 3}, (4, 10), cost_of_length=lambda length: length / 2)
    4.25
    """
    fitting = {length: number for length, number in histogram.items() if length <= lengths[-1]}
    total = sum(number * cost_of_length(lengths[bisect_left(lengths, length)]) for length, number in fitting.items())
    return total / max(1, sum(fitting.values()))
