"""Signed session tokens, for sessions whose state the client keeps, and their signing key.

A token has everything that the next request needs. It is signed, not encrypted: its holder can read the state in it.
An older token of the same session stays valid, and a request that is repeated with it is computed again, with the same
result.
"""

from __future__ import annotations

import binascii
import hmac
import os
import secrets
import stat
import struct
from base64 import b64decode, urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

KEY_BYTES = 32


class SigningKeyError(Exception):
    """The signing key is missing, or must not be used; the message says why, and what an operator can do."""


def signing_key_from_environment(name: str) -> bytes:
    """Read the key from the environment variable `name`.

    All hosts that serve the same sessions need the same key.

    Raises:
        SigningKeyError: it is not set, or is not a key. The message contains no part of it.
    """
    text = os.environ.get(name, "")
    if not text:
        raise SigningKeyError(
            f"the environment variable {name}, which holds the signing key of session tokens, is not set: {_HOW}"
        )
    return _parse(text, f"the environment variable {name}")


def signing_key_from_file(file: Path) -> bytes:
    """Read the key from `file`, or make one there, so that all workers of a host have the same key.

    Raises:
        SigningKeyError: it cannot be read or made, others can read it, or it is not a key.
    """
    try:
        if not file.exists():
            _make(file)
        mode = stat.S_IMODE(file.stat().st_mode)
        text = file.read_text("ascii", errors="replace")
    except OSError as error:
        raise SigningKeyError(f"the signing key of session tokens cannot be kept in {file}: {error}") from error
    if mode & 0o077:
        raise SigningKeyError(
            f"others can read the signing key of session tokens in {file}: remove the permission with `chmod 600`"
        )
    return _parse(text, str(file))


_HOW = f"make one with `openssl rand -hex {KEY_BYTES}`"


def _parse(text: str, where: str) -> bytes:
    text = text.strip()
    if len(text) != 2 * KEY_BYTES or set(text) - set("0123456789abcdefABCDEF"):
        raise SigningKeyError(
            f"{where} has no signing key of session tokens, which is {2 * KEY_BYTES} hex digits: {_HOW}"
        )
    return bytes.fromhex(text)


def _make(file: Path) -> None:
    # Linking a complete file is atomic; if another process was first, its key is kept.
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as opened:  # noqa: PTH123 - a descriptor
            os.fchmod(descriptor, 0o600)  # whatever the umask has taken away
            opened.write(f"{secrets.token_hex(KEY_BYTES)}\n")
            opened.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, file)
        except FileExistsError:
            return
    finally:
        draft.unlink()


_VERSION = 1
_MODEL_BYTES = 16
_HEAD = struct.Struct(f">B{_MODEL_BYTES}sQ")
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
    """Identity of the models that can resume this state: 16 bytes."""
    state: bytes
    """The model's carried values."""


def token_length(state_bytes: int) -> int:
    """Return the number of characters in a token with a state of `state_bytes`.

    >>> token_length(4096)
    5538
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
        content = _HEAD.pack(_VERSION, session.model, session.steps) + session.state
    except struct.error as error:
        raise ValueError(f"the session exceeds the limits of a token: {error}") from error
    return urlsafe_b64encode(content + _sign(content, key)).rstrip(b"=").decode()


def verify_token(text: str, key: bytes, max_state_bytes: int) -> TokenState:
    """Verify a token of `sign_token`, and return the state in it.

    Raises:
        InvalidToken: it was made with another key or another version, was changed, or has a larger state.
    """
    longest = token_length(max_state_bytes)
    if len(text) > longest:
        raise InvalidTokenError(
            f"a session token of this model has up to {longest} characters, this one has {len(text)}"
        )
    signed = _decode(text)
    content, signature = signed[:-_SIGNATURE_BYTES], signed[-_SIGNATURE_BYTES:]
    if not hmac.compare_digest(_sign(content, key), signature) or len(content) < _HEAD.size:
        raise InvalidTokenError(
            "the session token was not made by this server, or was changed; send `start` to start again"
        )
    version, model, steps = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise InvalidTokenError(f"a session token of version {version} cannot be read, only {_VERSION}; start again")
    return TokenState(steps, model, content[_HEAD.size :])


def _sign(content: bytes, key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"session tokens are signed with a key of {KEY_BYTES} bytes, not {len(key)}")
    return hmac.digest(key, _PERSON + content, "sha256")


def _decode(text: str) -> bytes:
    """The bytes of a text that is written in the one way that `sign_token` writes them."""
    try:
        written = text.encode("ascii")
        signed = b64decode(written + b"=" * (-len(written) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        signed, written = b"", b"?"
    if urlsafe_b64encode(signed).rstrip(b"=") != written:
        raise InvalidTokenError("this is not a session token: it has other characters, or is incomplete")
    return signed
