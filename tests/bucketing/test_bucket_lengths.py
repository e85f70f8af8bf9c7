import math
import random
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing import bucket_lengths
from torchserve_neuron_lstm.bucketing.bucket_lengths import geometric_lengths, mean_cost, optimal_lengths, padding_stats
from torchserve_neuron_lstm.config.histogram import read_lengths

SAMPLE = Path(__file__).parents[2] / "examples" / "lengths" / "lognormal.txt"

histograms = st.dictionaries(st.integers(1, 60), st.integers(0, 50), min_size=1, max_size=9).filter(
    lambda histogram: any(histogram.values())
)


def every_set(histogram: dict[int, int], count: int) -> Iterator[tuple[int, ...]]:
    *others, longest = sorted(length for length in histogram if histogram[length] or length == max(histogram))
    for size in range(min(count, len(others) + 1)):
        for chosen in combinations(others, size):
            yield (*chosen, longest)


@given(histograms, st.integers(1, 5))
def test_no_other_lengths_compute_fewer_timesteps(histogram: dict[int, int], count: int) -> None:
    edges = optimal_lengths(histogram, count)

    least = min(padding_stats(histogram, others).computed for others in every_set(histogram, count))
    assert padding_stats(histogram, edges).computed == least
    assert len(edges) == min(
        len(others) for others in every_set(histogram, count) if padding_stats(histogram, others).computed == least
    )


@given(histograms, st.integers(1, 5))
@example({5: 1}, 3)
@example({5: 1, 9: 0}, 1)
def test_the_lengths_are_ascending_and_hold_every_sequence(histogram: dict[int, int], count: int) -> None:
    edges = optimal_lengths(histogram, count)

    assert 1 <= len(edges) <= count
    assert list(edges) == sorted(set(edges))
    assert set(edges) <= set(histogram)
    assert edges[-1] == max(histogram)
    assert padding_stats(histogram, edges).refused == 0


@given(histograms, st.integers(1, 5), st.randoms())
def test_a_histograms_order_does_not_matter(histogram: dict[int, int], count: int, generator: random.Random) -> None:
    items = list(histogram.items())
    generator.shuffle(items)

    assert optimal_lengths(dict(items), count) == optimal_lengths(histogram, count)


def plain_optimum(histogram: dict[int, int], count: int) -> int:
    """The fewest timesteps, by the textbook's dynamic program."""
    lengths = sorted(histogram)
    before = [0]
    for length in lengths:
        before.append(before[-1] + histogram[length])
    best: list[float] = [0, *(math.inf for _ in lengths)]
    for _ in range(count):
        best = [
            min(best[i] + (lengths[j - 1] if j else 0) * (before[j] - before[i]) for i in range(j + 1))
            for j in range(len(lengths) + 1)
        ]
    return int(best[-1])


def test_the_sample_is_as_its_note_says() -> None:
    """The sample can be drawn again."""
    generator = random.Random(0)
    drawn = [min(330, max(1, int(generator.lognormvariate(3.0, 0.7)))) for _ in range(10_000)]

    assert read_lengths(SAMPLE) == {length: drawn.count(length) for length in set(drawn)}


@pytest.mark.parametrize(("count", "about"), [(8, 0.190), (16, 0.086)])
def test_the_sample_is_tuned_to_the_optimum(count: int, about: float) -> None:
    histogram = read_lengths(SAMPLE)

    found = padding_stats(histogram, optimal_lengths(histogram, count))

    assert found.computed == plain_optimum(histogram, count)
    assert round(found.ratio, 3) == about
    assert round(padding_stats(histogram, (16, 32, 64, 128, 256, 330)).ratio, 2) == 0.31


def test_thousands_of_lengths_are_handled() -> None:
    histogram = dict.fromkeys(range(1, 4001), 1)

    edges = optimal_lengths(histogram, 64)

    assert len(edges) == 64
    assert padding_stats(histogram, edges).computed <= padding_stats(histogram, geometric_lengths(4000, 64)).computed


@pytest.mark.parametrize(
    ("histogram", "count", "said"),
    [
        ({}, 1, "there is no sequence"),
        ({3: 0}, 1, "there is no sequence"),
        ({0: 1}, 1, "got 1 of length 0"),
        ({3: -1, 4: 5}, 1, "got -1 of length 3"),
        ({3: 1}, 0, "the number of lengths must be 1 or more, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(histogram: dict[int, int], count: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        optimal_lengths(histogram, count)


def factor_of(edges: tuple[int, ...], spare: int) -> float:
    """The factor by which a sequence is padded at worst, `spare` timesteps aside."""
    return max((edge + spare) / (before + 1 + spare) for before, edge in pairwise((0, *edges)))


@given(st.integers(1, 3000), st.integers(1, 40), st.integers(0, 32))
def test_without_data_padding_is_limited_in_proportion(longest: int, count: int, spare: int) -> None:
    edges = geometric_lengths(longest, count, spare)

    assert 1 <= len(edges) <= count
    assert list(edges) == sorted(set(edges))
    assert edges[-1] == longest
    ideal = ((longest + spare) / (1 + spare)) ** (1 / count)
    assert factor_of(edges, spare) <= 1.25 * ideal + 1 / (1 + spare)


@given(st.integers(1, 500), st.integers(1, 20))
def test_more_lengths_limit_padding_no_less(longest: int, count: int) -> None:
    assert factor_of(geometric_lengths(longest, count + 1), 8) <= factor_of(geometric_lengths(longest, count), 8)


def test_as_many_lengths_as_timesteps_leave_no_padding() -> None:
    assert geometric_lengths(7, 7) == geometric_lengths(7, 100) == (1, 2, 3, 4, 5, 6, 7)
    assert geometric_lengths(7, 1) == (7,)


@given(histograms, st.integers(1, 60), st.booleans())
def test_what_is_served_has_the_longest_and_nothing_beyond(
    histogram: dict[int, int], longest: int, truncate: bool
) -> None:
    served = bucket_lengths.clip_histogram(histogram, longest, truncate=truncate)

    assert max(served) == longest
    assert sum(served.values()) == sum(number for length, number in histogram.items() if truncate or length <= longest)


def test_sequences_that_no_length_holds_are_counted_apart() -> None:
    assert padding_stats({4: 2, 9: 3}, (4, 8)) == bucket_lengths.PaddingStats(useful=8, computed=8, refused=3)
    assert padding_stats({9: 3}, (8,)).ratio == 0
    assert mean_cost({9: 3}, (8,), float) == 0
