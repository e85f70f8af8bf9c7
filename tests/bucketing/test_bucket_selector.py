"""A bucket selector is called for every length, and refused with the lengths for which it fails."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.bucket_selector import BucketSelector, BucketSelectorError, tabulate_selector
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid

from .strategies import grids

LENGTHS = (4, 8)


def smallest(length: int, lengths: tuple[int, ...]) -> int:
    """A selector that chooses the smallest bucket, as cost would mostly do."""
    return bisect_left(lengths, length)


@given(grids(), st.data())
def test_whatever_holds_the_sequence_may_be_chosen(grid: BucketGrid, data: st.DataObject) -> None:
    """The table has exactly the chosen lengths, for every number of timesteps from 1 on."""
    choices = [
        data.draw(st.sampled_from([i for i, own in enumerate(grid.lengths) if own >= length]))
        for length in range(1, grid.lengths[-1] + 1)
    ]

    table = tabulate_selector(lambda length, lengths: choices[length - 1], grid.lengths)

    assert table == tuple(grid.lengths[choice] for choice in choices)


class Index:
    """An index type of another library."""

    def __index__(self) -> int:
        return 1


def test_a_number_of_another_library_is_an_index() -> None:
    """Every type that Python accepts as an index is accepted."""
    assert tabulate_selector(lambda length, lengths: Index(), LENGTHS) == (8,) * 8  # type: ignore[arg-type,return-value]  # no int


def forgetful() -> BucketSelector:
    """A selector whose choice depends on the number of its calls."""
    asked: list[int] = []

    def choose(length: int, lengths: tuple[int, ...]) -> int:
        asked.append(length)
        return 1 if length > 4 or len(asked) > 8 else 0

    return choose


def fails(length: int, lengths: tuple[int, ...]) -> int:
    """A selector that divides by zero at 7."""
    return smallest(length, lengths) + 0 // (length - 7)


@pytest.mark.parametrize(
    ("choose", "complaints"),
    [
        (lambda length, lengths: 0, ["5 timesteps: 0, which is the length 4: too short", "8 timesteps: 0, which"]),
        (lambda length, lengths: 2, ["1 timesteps: 2, but the lengths have the indices 0 to 1", "and 3 more"]),
        (lambda length, lengths: -1, ["1 timesteps: -1, but"]),
        (lambda length, lengths: True, ["1 timesteps: True is no index"]),
        (lambda length, lengths: 1.0, ["1 timesteps: 1.0 is no index"]),
        (lambda length, lengths: None, ["1 timesteps: None is no index"]),
        (lambda: 0, ["1 timesteps: TypeError"]),
        (fails, ["7 timesteps: ZeroDivisionError"]),
        (forgetful(), ["1 timesteps: 0, and 1 when called again", "4 timesteps: 0, and 1 when called again"]),
    ],
)
def test_a_choice_that_goes_wrong_is_told_by_the_first_lengths(
    choose: Callable[..., int], complaints: list[str]
) -> None:
    """The message has at most five lengths, each with the chosen bucket."""
    with pytest.raises(BucketSelectorError) as refused:
        tabulate_selector(choose, LENGTHS)

    text = str(refused.value)
    for complaint in complaints:
        assert complaint in text
    assert text.count(" timesteps: ") <= 5


def test_only_the_lengths_that_go_wrong_are_named() -> None:
    """Lengths with a valid choice are not named."""
    with pytest.raises(BucketSelectorError) as refused:
        tabulate_selector(fails, LENGTHS)

    assert str(refused.value).count(" timesteps: ") == 1
