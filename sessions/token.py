"""Sessions that the client carries: all that the next piece needs, in a text that only the server can have made.

It is signed, not hidden: who has the token can read the state in it. An older token of the same session stays good, and
a piece that is sent with it again is computed again, to the same answer.
"""

from __future__ import annotations

import binascii
import hmac
import struct
from base64 import b64decode, urlsafe_b64encode
from dataclasses import dataclass

from .token_key import KEY_BYTES

_VERSION = 1
_MODEL_BYTES = 16
_HEAD = struct.Struct(f">B{_MODEL_BYTES}sQ")
_SIGNATURE_BYTES = 32
_PERSON = b"neuron-lstm session token\n"


class InvalidToken(ValueError):
    """A text that is no token of this server. The message holds none of it."""


@dataclass(frozen=True)
class TokenState:
    """What the next piece goes on from."""

    steps: int
    """Timesteps applied since the session began."""
    model: bytes
    """Which models can go on from this state: 16 bytes."""
    state: bytes
    """The model's carried values."""


def token_characters(state_bytes: int) -> int:
    """How long the token of a state is.

    >>> token_characters(4096)
    5538
    """
    return -(-4 * (_HEAD.size + state_bytes + _SIGNATURE_BYTES) // 3)


def seal(session: TokenState, key: bytes) -> str:
    """The token of a session: A-Z a-z 0-9 - _, a third longer than its state.

    Raises:
        ValueError: a field is beyond what a token holds.
    """
    if len(session.model) != _MODEL_BYTES:
        raise ValueError(f"a session's model is told by {_MODEL_BYTES} bytes, not {len(session.model)}")
    try:
        content = _HEAD.pack(_VERSION, session.model, session.steps) + session.state
    except struct.error as error:
        raise ValueError(f"a session is beyond what its token holds: {error}") from error
    return urlsafe_b64encode(content + _sign(content, key)).rstrip(b"=").decode()


def open_token(text: str, key: bytes, max_state_bytes: int) -> TokenState:
    """What `seal` was given.

    Raises:
        InvalidToken: it was made with another key or another version, was changed, or holds a larger state.
    """
    longest = token_characters(max_state_bytes)
    if len(text) > longest:
        raise InvalidToken(f"a session token of this model has up to {longest} characters, this one has {len(text)}")
    sealed = _decode(text)
    content, signature = sealed[:-_SIGNATURE_BYTES], sealed[-_SIGNATURE_BYTES:]
    if not hmac.compare_digest(_sign(content, key), signature) or len(content) < _HEAD.size:
        raise InvalidToken("the session token was not made by this server, or was changed; send `start` to begin anew")
    version, model, steps = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise InvalidToken(f"a session token of version {version} cannot be read, only {_VERSION}; begin anew")
    return TokenState(steps, model, content[_HEAD.size :])


def _sign(content: bytes, key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"session tokens are signed with a key of {KEY_BYTES} bytes, not {len(key)}")
    return hmac.digest(key, _PERSON + content, "sha256")


def _decode(text: str) -> bytes:
    """The bytes of a text that is written in the one way that `seal` writes them."""
    try:
        written = text.encode("ascii")
        sealed = b64decode(written + b"=" * (-len(written) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        sealed, written = b"", b"?"
    if urlsafe_b64encode(sealed).rstrip(b"=") != written:
        raise InvalidToken("this is no session token: it has characters of another kind, or is incomplete")
    return sealed
