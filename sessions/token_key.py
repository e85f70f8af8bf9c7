"""The key that session tokens are signed with: given to several hosts, or made once by one."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

KEY_BYTES = 32


class NoKey(Exception):
    """There is no key, or it must not be used. Says why, and what an operator can do."""


def key_of_environment(name: str) -> bytes:
    """The key in the environment variable `name`, the same for all hosts that serve the same sessions.

    Raises:
        NoKey: it is not there, or is no key. The message holds none of it.
    """
    text = os.environ.get(name, "")
    if not text:
        raise NoKey(f"the environment variable {name}, which holds the key of session tokens, is not set: {_HOW}")
    return _parse(text, f"the environment variable {name}")


def key_of_file(file: Path) -> bytes:
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
        raise NoKey(f"the key of session tokens cannot be kept in {file}: {error}") from error
    if mode & 0o077:
        raise NoKey(f"others can read the key of session tokens in {file}: take the right away with `chmod 600`")
    return _parse(text, str(file))


_HOW = f"make one with `openssl rand -hex {KEY_BYTES}`"


def _parse(text: str, where: str) -> bytes:
    text = text.strip()
    if len(text) != 2 * KEY_BYTES or set(text) - set("0123456789abcdefABCDEF"):
        raise NoKey(f"{where} holds no key of session tokens, which is {2 * KEY_BYTES} hex digits: {_HOW}")
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
