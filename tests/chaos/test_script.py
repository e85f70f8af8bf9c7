"""The sessions that clients send."""

from __future__ import annotations

import pytest
from chaos.script import LONGEST_CHUNK, draw_scripts


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_chunks_of_a_session_are_its_tokens_in_order(seed: int) -> None:
    """None is empty or too long, none is missing, and only the last one ends the session."""
    for script in draw_scripts(sessions=5, chunks=30, tokens=50, seed=seed):
        chunks = list(script.chunks())

        assert tuple(token for chunk in chunks for token in chunk.tokens) == script.tokens
        assert [chunk.begin for chunk in chunks] == [0, *(chunk.end for chunk in chunks[:-1])]
        assert all(1 <= len(chunk.tokens) <= LONGEST_CHUNK for chunk in chunks)
        assert [chunk.last for chunk in chunks] == [False] * 29 + [True]


def test_a_seed_draws_the_same_again_and_another_one_other_sessions() -> None:
    """A failed run can be repeated."""
    assert draw_scripts(3, 4, 50, seed=1) == draw_scripts(3, 4, 50, seed=1)
    assert draw_scripts(3, 4, 50, seed=1) != draw_scripts(3, 4, 50, seed=2)


def test_sessions_have_ids_of_their_own() -> None:
    """Sessions with one id would be one session."""
    assert len({script.id for script in draw_scripts(100, 1, 50, seed=0)}) == 100
