"""States that a batch can reach in chunked plans, and the calls that can start each.

A state is a row group and a start time; see `bucketed_chunks.py`. All states are enumerated before any is evaluated,
so that a batch with too many of them is known early.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple, Optional

from .chunk_options import CallOption, ChunkCosts, ChunkOptions

_NOTHING, WHOLE = 0, 1

StateCall = tuple[ChunkCosts, int, int, Optional[list[int]]]
"""One way to start a state: chunks, the state of the remaining rows, an index, and states.

The index is that of the first chunk considered, and the states are those at the end of each chunk considered. If they
are None, it is the cheapest sequence of chunks, of as many timesteps as the index says.
"""


class StateTable(NamedTuple):
    """All states of one batch, by number. The number -n is a single row with n timesteps left.

    The key of `rows` rows from row `first` on, active at time `start`, is (start * base + first) * base + rows, where
    base is more than the rows of the batch. A state depends only on states with larger keys.
    """

    base: int
    keys: list[int]
    """Keys of the states, from number 1 on."""
    calls: list[list[StateCall]]
    """Ways to start each state."""
    order: list[int]
    """Numbers of the states, each after those it depends on."""


def enumerate_states(lengths: list[int], known: ChunkOptions, most: int) -> StateTable | None:
    """Enumerate the states that these lengths, the longest first, can reach; None if more than `most`."""
    options, single_row = known.options, len(known.single_row.suffix_costs[0])
    active_at = _active_at(lengths)
    count = len(lengths)
    base = count + 1
    square = base * base
    keys = [count]
    numbers = {count: WHOLE}
    all_calls: list[list[StateCall]] = [[]]
    for key in islice(keys, most):  # the list grows during the loop
        index, rows = divmod(key, base)
        start, first = divmod(index, base)
        longest = lengths[first]
        calls: list[StateCall] = []
        considered = options[rows] if start or first else options[rows] + _long_rows_apart(active_at, options)
        for chunks, rows_called, min_active, first_chunk, candidate_chunks in considered:
            rest = 0
            if rows_called < rows:
                rest = _number(key + rows_called * count, numbers, keys)
            left = lengths[first + min_active - 1] - start
            if left == longest - start and left < len(chunks.suffix_costs[0]):
                calls.append((chunks, rest, left, None))
                continue
            first_index = first_chunk[left] if left < len(first_chunk) else first_chunk[-1]
            ends: list[int] = []
            beyond = first + rows_called
            for length, enough in candidate_chunks[first_index]:
                end = start + length
                if end >= longest:
                    ends.append(_NOTHING)
                    break
                last = active_at[end]
                if last > beyond:  # noqa: PLR1730 - a call of min() takes as long as the rest of the loop
                    last = beyond
                if last == first + 1 and longest - end < single_row:
                    ends.append(end - longest)
                else:
                    following = end * square + first * count + last
                    number = numbers.get(following)
                    if number is None:
                        keys.append(following)
                        number = numbers[following] = len(keys)
                    ends.append(number)
                if last - first <= enough:
                    break
            calls.append((chunks, rest, first_index, ends))
        all_calls.append(calls)
    if len(keys) > most:
        return None
    return StateTable(base, keys, all_calls, [numbers[key] for key in sorted(keys, reverse=True)])


def _active_at(lengths: list[int]) -> list[int]:
    """For each time before the longest row ends, the number of rows that have not ended."""
    active: list[int] = []
    for row in range(len(lengths) - 1, -1, -1):
        if lengths[row] > len(active):
            active += [row + 1] * (lengths[row] - len(active))
    return active


def _long_rows_apart(active_at: list[int], options: tuple[tuple[CallOption, ...], ...]) -> tuple[CallOption, ...]:
    """Return options that first call only the rows that last more than half as long as the longest row.

    They are considered for the whole batch alone: considered for every state, they make planning five times as slow and
    plans no better.
    """
    count, long = active_at[0], active_at[len(active_at) // 2]
    return tuple(
        option
        for option in options[long]
        if option.rows_called == long < count and option.chunks.buckets[0][0].batch < count
    )


def _number(key: int, numbers: dict[int, int], keys: list[int]) -> int:
    number = numbers.get(key)
    if number is None:
        keys.append(key)
        number = numbers[key] = len(keys)
    return number
