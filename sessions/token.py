"""Signed session tokens, for sessions whose state the client keeps, and the keys that sign them.

A token has everything that the next request needs. It is signed, not encrypted: its holder can read the state in it.
An older token of the same session stays valid until it expires, and a request that is repeated with it is computed
again, with the same result.
"""

from __future__ import annotations

import binascii
import errno
import hmac
import os
import secrets
import stat
import struct
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

_VERSION = 1
_MODEL_BYTES = 16
_HEAD = struct.Struct(f">B{_MODEL_BYTES}sQQ")
_SIGNATURE_BYTES = 32


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
    return blake2b(name.encode(), digest_size=_MODEL_BYTES, key=state_id, person=b"neuron-lstm toke").digest()


def token_length(state_bytes: int) -> int:
    """Return the number of characters in a token with a state of `state_bytes`.

    >>> token_length(4096)
    5548
    """
    return -(-4 * (_HEAD.size + state_bytes + _SIGNATURE_BYTES) // 3)


def sign_token(session: TokenState, key: bytes) -> str:
    """Make the token of a session: A-Z a-z 0-9 - _, a third longer than its state.

    Raises `ValueError`: a field exceeds the limits of a token.
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

    Raises `InvalidTokenError`: it was made with another key or another version, was changed, or has a larger state.
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
    if len(key) != _KEY_BYTES:
        raise ValueError(f"session tokens are signed with a key of {_KEY_BYTES} bytes, not {len(key)}")
    return hmac.digest(key, b"neuron-lstm session token\n" + content, "sha256")


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


_KEY_BYTES = 32


class SigningKeyError(Exception):
    """The signing key is missing, or must not be used; the message says why, and what an operator can do."""


def signing_keys_from_environment(name: str) -> tuple[bytes, ...]:
    """Read the keys from the environment variable `name`: the first signs, each verifies.

    All hosts that serve the same sessions need the same keys.

    Raises `SigningKeyError`: it is not set, or is not a key or two. The message contains no part of it.
    """
    text = os.environ.get(name, "")
    if not text:
        raise SigningKeyError(
            f"the environment variable {name}, which holds the signing key of session tokens, is not set: {_HOW}"
        )
    return _parse(text, f"the environment variable {name}")


def signing_keys_from_file(file: Path) -> tuple[bytes, ...]:
    """Read the keys from `file`, or make one there, so that all workers of a host have the same.

    The first signs, each verifies. The file that is checked is the one that is read: folder and file are opened once,
    and no link is followed.

    Raises `SigningKeyError`: it cannot be read or made, another user can read or replace it, or it is not a key or two.
    """
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check_folder(os.fstat(folder), file)
            text = _read(file, folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise SigningKeyError(f"the signing key of session tokens cannot be kept in {file}: {error}") from error
    return _parse(text, str(file))


_HOW = f"make one with `openssl rand -hex {_KEY_BYTES}`"


def _parse(text: str, where: str) -> tuple[bytes, ...]:
    keys = text.replace(",", " ").split()
    wrong = [key for key in keys if len(key) != 2 * _KEY_BYTES or set(key) - set("0123456789abcdefABCDEF")]
    if wrong or len(keys) not in (1, 2):
        raise SigningKeyError(
            f"{where} has no signing key of session tokens, which is {2 * _KEY_BYTES} hex digits: {_HOW}. To replace a "
            f"key, put the new one before the old one"
        )
    return tuple(map(bytes.fromhex, keys))


def _check_folder(found: os.stat_result, file: Path) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise SigningKeyError(
            f"the folder of the signing key {file} belongs to another user, who can replace the key: keep it in a "
            f"folder of the user who runs the server"
        )
    if found.st_mode & 0o022:
        raise SigningKeyError(
            f"other users can write to the folder of the signing key {file}, and replace the key: remove the "
            f"permission with `chmod go-w`"
        )


def _read(file: Path, folder: int) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # no waiting for the writer of a pipe
    try:
        try:
            descriptor = os.open(file.name, flags, dir_fd=folder)
        except FileNotFoundError:
            _make(file.name, folder)
            descriptor = os.open(file.name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SigningKeyError(f"the signing key of session tokens {file} is a link: put the file there") from error
        raise
    with open(descriptor, encoding="ascii", errors="replace") as opened:  # noqa: PTH123 - a descriptor
        _check_file(os.fstat(descriptor), file)
        return opened.read(_MOST_CHARACTERS)


_MOST_CHARACTERS = 1024


def _check_file(found: os.stat_result, file: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise SigningKeyError(f"the signing key of session tokens {file} is not a regular file: put a file there")
    if found.st_uid not in (os.geteuid(), 0):
        raise SigningKeyError(
            f"the signing key of session tokens {file} belongs to another user: make it a file of the user who runs "
            f"the server"
        )
    if found.st_mode & 0o077:
        raise SigningKeyError(
            f"others can read the signing key of session tokens in {file}: remove the permission with `chmod 600`"
        )


def _make(name: str, folder: int) -> None:
    # Linking a complete file is atomic; if another process was first, its key is kept.
    draft = f".{name}.{secrets.token_hex(8)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "w", encoding="ascii") as opened:  # noqa: PTH123 - a descriptor
            os.fchmod(descriptor, 0o600)  # independent of the umask
            opened.write(f"{secrets.token_hex(_KEY_BYTES)}\n")
            opened.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            return
    finally:
        os.unlink(draft, dir_fd=folder)
