"""Sessions that the client carries: all that the next piece needs, in a text that only the server can have made.

It is signed, not hidden: who has the token can read the state in it. An older token of the same session stays good, and
a piece that is sent with it again is computed again, to the same answer.
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
    """There is no key, or it must not be used. Says why, and what an operator can do."""


def signing_key_from_environment(name: str) -> bytes:
    """The key in the environment variable `name`, the same for all hosts that serve the same sessions.

    Raises:
        NoKey: it is not there, or is no key. The message holds none of it.
    """
    text = os.environ.get(name, "")
    if not text:
        raise SigningKeyError(
            f"the environment variable {name}, which holds the key of session tokens, is not set: {_HOW}"
        )
    return _parse(text, f"the environment variable {name}")


def signing_key_from_file(file: Path) -> bytes:
    """The key in `file`, which is made where there is none, so that all workers of a host have the same.

    Raises:
        NoKey: it cannot be read or made, others can read it, or it is no key.
    """
    try:
        if not file.exists():
            _make(file)
        mode = stat.S_IMODE(file.stat().st_mode)
        text = file.read_text("ascii", errors="replace")
    except OSError as error:
        raise SigningKeyError(f"the key of session tokens cannot be kept in {file}: {error}") from error
    if mode & 0o077:
        raise SigningKeyError(
            f"others can read the key of session tokens in {file}: take the right away with `chmod 600`"
        )
    return _parse(text, str(file))


_HOW = f"make one with `openssl rand -hex {KEY_BYTES}`"


def _parse(text: str, where: str) -> bytes:
    text = text.strip()
    if len(text) != 2 * KEY_BYTES or set(text) - set("0123456789abcdefABCDEF"):
        raise SigningKeyError(f"{where} holds no key of session tokens, which is {2 * KEY_BYTES} hex digits: {_HOW}")
    return bytes.fromhex(text)


def _make(file: Path) -> None:
    """Put a new key there whole, or leave what another process has put there meanwhile."""
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


def token_length(state_bytes: int) -> int:
    """How long the token of a state is.

    >>> token_length(4096)
    5538
    """
    return -(-4 * (_HEAD.size + state_bytes + _SIGNATURE_BYTES) // 3)


def sign_token(session: TokenState, key: bytes) -> str:
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


def verify_token(text: str, key: bytes, max_state_bytes: int) -> TokenState:
    """What `sign_token` was given.

    Raises:
        InvalidToken: it was made with another key or another version, was changed, or holds a larger state.
    """
    longest = token_length(max_state_bytes)
    if len(text) > longest:
        raise InvalidTokenError(
            f"a session token of this model has up to {longest} characters, this one has {len(text)}"
        )
    sealed = _decode(text)
    content, signature = sealed[:-_SIGNATURE_BYTES], sealed[-_SIGNATURE_BYTES:]
    if not hmac.compare_digest(_sign(content, key), signature) or len(content) < _HEAD.size:
        raise InvalidTokenError(
            "the session token was not made by this server, or was changed; send `start` to begin anew"
        )
    version, model, steps = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise InvalidTokenError(f"a session token of version {version} cannot be read, only {_VERSION}; begin anew")
    return TokenState(steps, model, content[_HEAD.size :])


def _sign(content: bytes, key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"session tokens are signed with a key of {KEY_BYTES} bytes, not {len(key)}")
    return hmac.digest(key, _PERSON + content, "sha256")


def _decode(text: str) -> bytes:
    """The bytes of a text that is written in the one way that `sign_token` writes them."""
    try:
        written = text.encode("ascii")
        sealed = b64decode(written + b"=" * (-len(written) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        sealed, written = b"", b"?"
    if urlsafe_b64encode(sealed).rstrip(b"=") != written:
        raise InvalidTokenError("this is no session token: it has characters of another kind, or is incomplete")
    return sealed
