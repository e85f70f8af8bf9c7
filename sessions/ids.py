"""Session ids, and the keys of their records.

An id grants access to its session, so stores see only the key.
"""

from __future__ import annotations

import re
import secrets
from functools import lru_cache
from hashlib import blake2b

MAX_CHARACTERS = 128
KEY_BYTES = 16

_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_FOREIGN = re.compile(r"[^A-Za-z0-9._~:-]")
_NAMESPACE_PERSON = b"neuron-lstm name"
_ID_PERSON = b"neuron-lstm id"
_CLIENT_PERSON = b"neuron-lstm user"


def check_id(text: str) -> str:
    """Return `text` if it is a valid session id: it can be used in a header, a log and a URL unchanged.

    >>> check_id("user-17:a")
    'user-17:a'

    Raises:
        ValueError: it is not valid. The message contains no part of it.
    """
    if not isinstance(text, str):
        raise ValueError(f"a session id is a string, not {type(text).__name__}")  # noqa: TRY004 - as any other id
    if _ID.fullmatch(text):
        return text
    foreign = _FOREIGN.search(text[:MAX_CHARACTERS])
    wrong = f"character {foreign.start() + 1} is another one" if foreign else f"this one has {len(text)}"
    raise ValueError(f"a session id has 1 to {MAX_CHARACTERS} characters, only A-Z a-z 0-9 . _ ~ : -, but {wrong}")


def make_id() -> str:
    """Make a new random id: 144 bits, 24 characters."""
    return secrets.token_urlsafe(18)


def client_key(client: str, namespace: str) -> bytes:
    """Return the key of a client: 16 bytes, different in every namespace and from every session's key."""
    return blake2b(client.encode(), digest_size=KEY_BYTES, key=_name_key(namespace), person=_CLIENT_PERSON).digest()


@lru_cache(maxsize=16384)  # a request reads its record and writes it
def store_key(id: str, namespace: str) -> bytes:  # noqa: A002 - the standard term
    """Return the key of a session's record: 16 bytes, different in every namespace.

    The id cannot be computed from it, so a copied store grants no access to sessions with ids that cannot be guessed.

    >>> store_key("a", "tagger").hex() == store_key("a", "scorer").hex()
    False
    """
    return blake2b(id.encode(), digest_size=KEY_BYTES, key=_name_key(namespace), person=_ID_PERSON).digest()


@lru_cache(maxsize=64)  # the models of a process
def _name_key(namespace: str) -> bytes:
    return blake2b(namespace.encode(), digest_size=32, person=_NAMESPACE_PERSON).digest()
