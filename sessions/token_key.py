"""Signing keys of session tokens: one that signs, and the one before it while it is replaced."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

KEY_BYTES = 32


class SigningKeyError(Exception):
    """The signing key is missing, or must not be used; the message says why, and what an operator can do."""


def signing_keys_from_environment(name: str) -> tuple[bytes, ...]:
    """Read the keys from the environment variable `name`: the first signs, each verifies.

    All hosts that serve the same sessions need the same keys.

    Raises:
        SigningKeyError: it is not set, or is not a key or two. The message contains no part of it.
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

    Raises:
        SigningKeyError: it cannot be read or made, another user can read or replace it, or it is not a key or two.
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


_HOW = f"make one with `openssl rand -hex {KEY_BYTES}`"


def _parse(text: str, where: str) -> tuple[bytes, ...]:
    keys = text.replace(",", " ").split()
    wrong = [key for key in keys if len(key) != 2 * KEY_BYTES or set(key) - set("0123456789abcdefABCDEF")]
    if wrong or len(keys) not in (1, 2):
        raise SigningKeyError(
            f"{where} has no signing key of session tokens, which is {2 * KEY_BYTES} hex digits: {_HOW}. To replace a "
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
            opened.write(f"{secrets.token_hex(KEY_BYTES)}\n")
            opened.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            return
    finally:
        os.unlink(draft, dir_fd=folder)
