"""Signed session tokens, for sessions whose state the client keeps.

A token has everything that the next request needs. It is signed, not encrypted: its holder can read the state in it.
An older token of the same session stays valid until it expires, and a request that is repeated with it is computed
again, with the same result.
"""

from __future__ import annotations

import binascii
import hmac
import struct
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from .token_key import KEY_BYTES

_VERSION = 1
_MODEL_BYTES = 16
_HEAD = struct.Struct(f">B{_MODEL_BYTES}sQQ")
_MODEL_PERSON = b"neuron-lstm toke"
_SIGNATURE_BYTES = 32
_PERSON = b"neuron-lstm session token\n"


class InvalidTokenError(ValueError):
    """A text that is not a token of this server; the message contains no part of it."""


@dataclass(frozen=True)
class TokenState:
    """State in a token."""

    steps: int
    """Timesteps applied since the start of the session."""
    model: bytes
    """The model that can resume this state, by `token_model`: 16 bytes."""
    state: bytes
    """The model's carried values."""
    issued: int
    """Time of the token in seconds of the wall clock."""


def token_model(state_id: bytes, name: str) -> bytes:
    """Return a digest of the model's identity and of the name under which it is served: 16 bytes.

    >>> token_model(bytes(16), "tagger") == token_model(bytes(16), "scorer")
    False
    """
    return blake2b(name.encode(), digest_size=_MODEL_BYTES, key=state_id, person=_MODEL_PERSON).digest()


def token_length(state_bytes: int) -> int:
    """Return the number of characters in a token with a state of `state_bytes`.

    >>> token_length(4096)
    5548
    """
    return -(-4 * (_HEAD.size + state_bytes + _SIGNATURE_BYTES) // 3)


def sign_token(session: TokenState, key: bytes) -> str:
    """Make the token of a session: A-Z a-z 0-9 - _, a third longer than its state.

    Raises:
        ValueError: a field exceeds the limits of a token.
    """
    if len(session.model) != _MODEL_BYTES:
        raise ValueError(f"the model of a session has {_MODEL_BYTES} bytes, not {len(session.model)}")
    try:
        content = _HEAD.pack(_VERSION, session.model, session.steps, session.issued) + session.state
    except struct.error as error:
        raise ValueError(f"the session exceeds the limits of a token: {error}") from error
    return urlsafe_b64encode(content + _sign(content, key)).rstrip(b"=").decode()


def verify_token(text: str, keys: Sequence[bytes], max_state_bytes: int) -> TokenState:
    """Verify a token that `sign_token` made with one of `keys`, and return the state in it.

    The caller checks whether it has expired and whether it is of the right model.

    Raises:
        InvalidTokenError: it was made with another key or another version, was changed, or has a larger state.
    """
    longest = token_length(max_state_bytes)
    if len(text) > longest:
        raise InvalidTokenError(
            f"a session token of this model has up to {longest} characters, this one has {len(text)}"
        )
    signed = _decode(text)
    content, signature = signed[:-_SIGNATURE_BYTES], signed[-_SIGNATURE_BYTES:]
    ours = [hmac.compare_digest(_sign(content, key), signature) for key in keys]
    if not any(ours) or len(content) < _HEAD.size:
        raise InvalidTokenError(
            "the session token was not made by this server, or was changed; send `start` to start again"
        )
    version, model, steps, issued = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise InvalidTokenError(f"a session token of version {version} cannot be read, only {_VERSION}; start again")
    return TokenState(steps, model, content[_HEAD.size :], issued)


def _sign(content: bytes, key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"session tokens are signed with a key of {KEY_BYTES} bytes, not {len(key)}")
    return hmac.digest(key, _PERSON + content, "sha256")


def _decode(text: str) -> bytes:
    """Decode a text; only the one spelling that `sign_token` writes is accepted."""
    try:
        written = text.encode("ascii")
        signed = b64decode(written + b"=" * (-len(written) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        signed, written = b"", b"?"
    if urlsafe_b64encode(signed).rstrip(b"=") != written:
        raise InvalidTokenError("this is not a session token: it has other characters, or is incomplete")
    return signed
