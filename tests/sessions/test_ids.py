from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.ids import check_id, make_id, store_key

from .strategies import ID_CHARACTERS, ids


@given(ids())
def test_an_id_is_taken_as_it_is(text: str) -> None:
    """The id is not stripped or folded: two ids are two sessions."""
    assert check_id(text) == text


@given(st.text(max_size=200))
@example("")
@example("a\n")
@example("a\r\nSet-Cookie: b")
@example("é")
@example("\uff21")  # a letter, and a digit, of another script
@example("\u0661")
@example("a" * 129)
@example("a" * 128 + "\0")
@example("\ud800")
def test_only_short_ids_of_plain_characters_are_taken(text: str) -> None:
    """Any other id is refused."""
    if 1 <= len(text) <= 128 and set(text) <= set(ID_CHARACTERS):
        assert check_id(text) == text
    else:
        with pytest.raises(ValueError, match="a session id has 1 to 128 characters"):
            check_id(text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("", "this one has 0"), ("a" * 200, "this one has 200"), ("ab<c>", "character 3 is another one")],
)
def test_a_refusal_says_what_is_wrong_and_repeats_nothing(text: str, wrong: str) -> None:
    """The message may be in a header or a log."""
    with pytest.raises(ValueError) as refusal:
        check_id(text)

    assert str(refusal.value) == (f"a session id has 1 to 128 characters, only A-Z a-z 0-9 . _ ~ : -, but {wrong}")


def test_a_made_id_is_an_id_and_never_the_same() -> None:
    """The id has 144 random bits."""
    made = {check_id(make_id()) for _ in range(1000)}

    assert len(made) == 1000
    assert {len(text) for text in made} == {24}


@given(st.sets(st.tuples(ids(), st.sampled_from(("", "a", "tagger", "型", "x" * 300))), min_size=2, max_size=5))
def test_each_id_of_each_namespace_has_a_key_of_its_own(named: set[tuple[str, str]]) -> None:
    """The key has 16 bytes and never changes."""
    keys = {store_key(*pair) for pair in named}

    assert len(keys) == len(named)
    assert keys == {store_key(*pair) for pair in named}
    assert {len(key) for key in keys} == {16}


def test_a_key_is_the_same_in_every_version() -> None:
    """Otherwise an upgrade would lose sessions."""
    assert store_key("user-17", "tagger").hex() == "0e00e87456f830f613167f9f80a06e87"
