"""What a session is called. Whoever has the id has the session, so stores never see it, only a key made of it."""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b

MAX_CHARACTERS = 128
KEY_BYTES = 16

_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_FOREIGN = re.compile(r"[^A-Za-z0-9._~:-]")
_NAMESPACE_PERSON = b"neuron-lstm name"
_ID_PERSON = b"neuron-lstm id"


def check_id(text: str) -> str:
    """`text`, where it can be the id of a session: it can stand in a header, a log and a URL as it is.

    >>> check_id("user-17:a")
    'user-17:a'

    Raises:
        ValueError: it cannot. The message holds none of it.
    """
    if _ID.fullmatch(text):
        return text
    foreign = _FOREIGN.search(text[:MAX_CHARACTERS])
    wrong = f"character {foreign.start() + 1} is another one" if foreign else f"this one has {len(text)}"
    raise ValueError(f"a session id has 1 to {MAX_CHARACTERS} characters, of A-Z a-z 0-9 . _ ~ : - alone: {wrong}")


def make_id() -> str:
    """A new id that nobody can guess: 144 bits, 24 characters."""
    return secrets.token_urlsafe(18)


def store_key(id: str, namespace: str) -> bytes:  # noqa: A002 - what it is
    """What stores know of a session: 16 bytes, other ones in every namespace.

    It does not lead back to the id, so a copied store gives nobody a session, as long as its id cannot be guessed.

    >>> store_key("a", "tagger").hex() == store_key("a", "scorer").hex()
    False
    """
    name = blake2b(namespace.encode(), digest_size=32, person=_NAMESPACE_PERSON).digest()
    return blake2b(id.encode(), digest_size=KEY_BYTES, key=name, person=_ID_PERSON).digest()
