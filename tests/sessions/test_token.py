from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.token import InvalidTokenError, TokenState, sign_token, token_length, verify_token

KEY = bytes(range(32))
SESSION = TokenState(12, b"model of sixteen", b"state" * 3, 1_700_000_000)

states = st.builds(
    TokenState,
    steps=st.sampled_from((0, 1, 2**64 - 1)) | st.integers(0, 1000),
    model=st.binary(min_size=16, max_size=16),
    state=st.binary(max_size=200),
    issued=st.integers(0, 2**64 - 1),
)
keys = st.binary(min_size=32, max_size=32)


@given(states, keys)
def test_a_token_is_verified_as_it_was_signed(session: TokenState, key: bytes) -> None:
    """It can be used unchanged in a header, a URL and a JSON text, and has the documented length."""
    token = sign_token(session, key)

    assert verify_token(token, [key], len(session.state)) == session
    assert re.fullmatch("[A-Za-z0-9_-]*", token)
    assert len(token) == token_length(len(session.state))


@given(states, st.data())
def test_a_changed_token_is_refused(session: TokenState, data: st.DataObject) -> None:
    """This holds for every character, also for one that decodes to the same bytes."""
    token = sign_token(session, KEY)
    place = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.characters().filter(lambda character: character != token[place]))

    with pytest.raises(InvalidTokenError):
        verify_token(token[:place] + character + token[place + 1 :], [KEY], 1000)


def test_every_character_of_one_token_counts() -> None:
    """Every character is replaced by every other one."""
    token = sign_token(SESSION, KEY)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/="
    for place, before in enumerate(token):
        for character in alphabet.replace(before, ""):
            with pytest.raises(InvalidTokenError):
                verify_token(token[:place] + character + token[place + 1 :], [KEY], 1000)


@given(states, st.data())
def test_a_token_of_another_length_is_refused(session: TokenState, data: st.DataObject) -> None:
    """Examples are truncated tokens and tokens with trailing characters."""
    token = sign_token(session, KEY)

    with pytest.raises(InvalidTokenError):
        verify_token(token[: data.draw(st.integers(0, len(token) - 1))], [KEY], 1000)
    with pytest.raises(InvalidTokenError):
        verify_token(token + data.draw(st.text("A-=\n ", min_size=1, max_size=4)), [KEY], 1000)


@given(st.text(max_size=300))
@example("")
@example("A" * 76)
@example("A" * 77)  # no length that base64 has
@example("\ud800")
def test_no_text_is_a_token_by_chance(text: str) -> None:
    """No other error is raised."""
    with pytest.raises(InvalidTokenError):
        verify_token(text, [KEY], 1000)


@given(states, keys, keys)
def test_another_key_opens_nothing(session: TokenState, key: bytes, other: bytes) -> None:
    """The keys are those of unrelated hosts."""
    if key != other:
        with pytest.raises(InvalidTokenError, match="was not made by this server, or was changed"):
            verify_token(sign_token(session, key), [other], 1000)


@given(states, keys, keys)
def test_while_a_key_is_replaced_tokens_of_both_are_verified(session: TokenState, new: bytes, old: bytes) -> None:
    """The order of the keys has no effect."""
    for key in (new, old):
        token = sign_token(session, key)
        assert verify_token(token, [new, old], 200) == verify_token(token, [old, new], 200) == session


def test_a_state_that_is_larger_than_any_of_the_model_is_refused_unread() -> None:
    """The text is refused before it is decoded."""
    with pytest.raises(InvalidTokenError, match="has up to 107 characters, this one has 10000000"):
        verify_token("A" * 10_000_000, [KEY], len(SESSION.state))
    with pytest.raises(InvalidTokenError, match="has up to 106 characters, this one has 107"):
        verify_token(sign_token(SESSION, KEY), [KEY], len(SESSION.state) - 1)


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (bytes((2,)) + bytes(32), "of version 2 cannot be read, only 1; start again"),
        (bytes((1,)) + bytes(31), "was not made by this server"),
    ],
)
def test_signed_content_of_another_form_is_refused(content: bytes, refusal: str) -> None:
    """Another version of this software may sign with the same key."""
    signature = hmac.digest(KEY, b"neuron-lstm session token\n" + content, "sha256")
    token = urlsafe_b64encode(content + signature).rstrip(b"=").decode()

    with pytest.raises(InvalidTokenError, match=refusal):
        verify_token(token, [KEY], 100)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_a_key_of_another_length_is_never_used(key: bytes) -> None:
    """A short key could be guessed."""
    with pytest.raises(ValueError, match="a key of 32 bytes"):
        sign_token(SESSION, key)


@pytest.mark.parametrize(
    "session",
    [
        TokenState(-1, bytes(16), b"", 0),
        TokenState(2**64, bytes(16), b"", 0),
        TokenState(0, b"short", b"", 0),
        TokenState(0, bytes(16), b"", -1),
    ],
)
def test_a_session_that_fits_no_token_is_refused(session: TokenState) -> None:
    """No field is truncated."""
    with pytest.raises(ValueError):
        sign_token(session, KEY)
