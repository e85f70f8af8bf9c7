"""Session tokens, as a worker reads them from a request.

The property: a token is read, or refused with an `InvalidTokenError` that repeats nothing of it. A token that was read
was signed with one of the keys, and is written with the same characters. The sessions of a service load the token, or
refuse it.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from random import Random

from torchserve_neuron_lstm.handlers.responses import RequestError
from torchserve_neuron_lstm.handlers.streaming.sessions import SessionKey
from torchserve_neuron_lstm.handlers.streaming.token_sessions import TokenSessions
from torchserve_neuron_lstm.sessions.token import InvalidTokenError, TokenState, sign_token, token_model, verify_token

from ..properties import require
from ..target import OctetMutation, Target

KEYS = (bytes(range(32)), bytes(32))
STATE_BYTES = 12
STATE_ID = bytes(range(16))
NOW = 1_700_000_000
SESSIONS = TokenSessions(KEYS, STATE_ID, STATE_BYTES, "model", 60.0, lambda: float(NOW))
_PERSON = b"neuron-lstm session token\n"
_SIGNATURE_BYTES = 32
_FEW_CHARACTERS = 12
"""A text of so many characters may stand in a message by chance."""


def seeds() -> Mapping[str, bytes]:
    """Return tokens of each key: all of them are read."""
    model, state = token_model(STATE_ID, "model"), b"\x00\x00\x80?" * 3
    return {
        "new": sign_token(TokenState(7, model, state, NOW), KEYS[0]).encode(),
        "expired": sign_token(TokenState(7, model, state, 0), KEYS[0]).encode(),
        "older_key": sign_token(TokenState(2**64 - 1, model, state, NOW), KEYS[1]).encode(),
    }


def signed(content: bytes, key: bytes) -> bytes:
    """Return a token of any content with a right signature."""
    signature = hmac.digest(key, _PERSON + content, "sha256")
    return urlsafe_b64encode(content + signature).rstrip(b"=")


def mutate(content: bytes, random: Random, mutate_octets: OctetMutation) -> bytes:
    """Change bytes behind the characters of a token and sign them, or change its characters."""
    if random.random() < 0.3:
        return mutate_octets(content)
    try:
        known = urlsafe_b64decode(content + b"=" * (-len(content) % 4))[:-_SIGNATURE_BYTES]
    except (binascii.Error, ValueError):
        known = b""
    changed = mutate_octets(known)
    if random.random() < 0.5:
        changed = bytes((random.choice((0, 1, 2, 3)),)) + changed[1:]
    return signed(changed, random.choice((*KEYS, b"\x01" * 32)))


def check(content: bytes) -> None:
    """Read these bytes as a token.

    Raises:
        PropertyViolation: a message repeats the token, or what was read is written with other characters.
    """
    text = content.decode("utf-8", "surrogatepass") if _is_text(content) else content.decode("latin-1")
    try:
        found = verify_token(text, KEYS, STATE_BYTES)
    except InvalidTokenError as error:
        require(len(text) <= _FEW_CHARACTERS or text not in str(error), "a message repeats nothing of a token")
    else:
        written = [sign_token(found, key) for key in KEYS]
        require(text in written, "a token that was read is written with the same characters")
        require(len(found.state) <= STATE_BYTES, "a token has no larger state than that of the model")
    (loaded,) = SESSIONS.load([SessionKey("a", text)])
    if isinstance(loaded, RequestError):
        require(loaded.status in (400, 410), "a token is refused as the client's error")


def _is_text(content: bytes) -> bool:
    try:
        content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


TARGET = Target(seeds, mutate, check, {"sessions/token.py": ("sign_token", "token_model", "_sign")})
