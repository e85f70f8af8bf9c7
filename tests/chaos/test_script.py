"""The sessions that clients send."""

from __future__ import annotations

import pytest
from chaos.script import LONGEST_PIECE, draw_scripts


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_pieces_of_a_session_are_its_tokens_in_order(seed: int) -> None:
    """None is empty or too long, none is missing, and only the last one ends the session."""
    for script in draw_scripts(sessions=5, pieces=30, tokens=50, seed=seed):
        pieces = list(script.pieces())

        assert tuple(token for piece in pieces for token in piece.tokens) == script.tokens
        assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
        assert all(1 <= len(piece.tokens) <= LONGEST_PIECE for piece in pieces)
        assert [piece.last for piece in pieces] == [False] * 29 + [True]


def test_a_seed_draws_the_same_again_and_another_one_other_sessions() -> None:
    """A failed run can be repeated."""
    assert draw_scripts(3, 4, 50, seed=1) == draw_scripts(3, 4, 50, seed=1)
    assert draw_scripts(3, 4, 50, seed=1) != draw_scripts(3, 4, 50, seed=2)


def test_sessions_have_ids_of_their_own() -> None:
    """Sessions with one id would be one session."""
    assert len({script.id for script in draw_scripts(100, 1, 50, seed=0)}) == 100
