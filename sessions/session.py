"""Sessions: their ids, their state, and its binary record in a store, which is protected by a checksum.

The checksum is over the key of the record, too: the record of another session is a damaged one.

An id grants access to its session, so stores see only the key of its record.
"""

from __future__ import annotations

import re
import secrets
import struct
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple


class Reply(NamedTuple):
    """Response to a request, byte for byte: a repeated request gets the same."""

    body: bytes
    content_type: str


class Session(NamedTuple):
    """State of a session after a request was applied."""

    steps: int
    """Timesteps applied since its start."""
    last_start: int
    """Timesteps applied before the last request: a request with that step is the last one repeated."""
    last_digest: bytes
    """Digest of the last request's content: another request with the same step has another one."""
    last_reply: Reply
    state: bytes
    """The model's carried values, from which the next request resumes. Empty once the session has ended."""
    model: bytes
    """Identity of the models that can resume this state: 16 bytes."""
    ended: bool = False
    """Whether the last request ended it. The record is kept for a while, since that request may be repeated."""


_FORMAT = 1
_FORMAT_BYTE = bytes((_FORMAT,))
_CHECKSUM_BYTES = 8
_MODEL_BYTES = 16
# After the format byte and the checksum: ended, steps, last_start, model, then the bytes of digest, content type,
# body and state. Those follow, in this order.
_FIELDS = struct.Struct(f">?QQ{_MODEL_BYTES}sBHII")
_NO_CONTENT = blake2b(digest_size=_CHECKSUM_BYTES, person=_FORMAT_BYTE)
_HEAD_BYTES = 1 + _CHECKSUM_BYTES + _FIELDS.size


class CorruptRecordError(Exception):
    """Bytes that are not a complete record of `encode_session`."""


def encode_session(session: Session, key: bytes) -> bytes:
    """Encode a session for the record with this key: 53 bytes, and its digest, state and last reply.

    Raises `ValueError`: a field exceeds the limits of a record.
    """
    steps, last_start, digest, (body, named), state, model, ended = session
    content_type = named.encode()
    if len(model) != _MODEL_BYTES:
        raise ValueError(f"the model of a session has {_MODEL_BYTES} bytes, not {len(model)}")
    sizes = len(digest), len(content_type), len(body), len(state)
    try:
        fields = _FIELDS.pack(ended, steps, last_start, model, *sizes)
    except struct.error as error:
        raise ValueError(f"the session exceeds the limits of a record: {error}") from error
    content = b"".join((fields, digest, content_type, body, state))
    return b"".join((_FORMAT_BYTE, _checksum(key, content), content))


def decode_session(record: bytes, key: bytes) -> Session:
    """Decode a record of `encode_session`.

    Raises `CorruptRecordError`: bytes are missing, changed or added, or it is the record of another key.
    """
    if len(record) < _HEAD_BYTES:
        raise CorruptRecordError(f"the record has {len(record)} bytes, and at least {_HEAD_BYTES} are needed")
    if record[0] != _FORMAT:
        raise CorruptRecordError(f"the record has format {record[0]}, and this code reads format {_FORMAT}")
    content = record[1 + _CHECKSUM_BYTES :]
    if _checksum(key, content) != record[1 : 1 + _CHECKSUM_BYTES]:
        raise CorruptRecordError(f"the record of {len(record)} bytes is damaged: its checksum differs")
    _, steps, last_start, model, *sizes = _FIELDS.unpack_from(content)
    # The checksum is no secret: whoever can write to the store can make a record of anything.
    if content[0] > 1 or sum(sizes) != len(content) - _FIELDS.size:
        raise CorruptRecordError(f"the record of {len(record)} bytes is damaged: its fields have other sizes or values")
    digest, content_type, body, state = struct.unpack_from("{}s{}s{}s{}s".format(*sizes), content, _FIELDS.size)
    try:
        reply = Reply(body, content_type.decode())
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"the record of {len(record)} bytes is damaged: a text is not UTF-8") from error
    return Session(steps, last_start, digest, reply, state, model, ended=content[0] == 1)


def _checksum(key: bytes, content: bytes) -> bytes:
    checksum = _NO_CONTENT.copy()
    checksum.update(key)
    checksum.update(content)
    return checksum.digest()


MAX_CHARACTERS = 128
_KEY_BYTES = 16

_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_FOREIGN = re.compile(r"[^A-Za-z0-9._~:-]")
_NAMESPACE_PERSON = b"neuron-lstm name"
_ID_PERSON = b"neuron-lstm id"
_CLIENT_PERSON = b"neuron-lstm user"


def check_id(text: str) -> str:
    """Return `text` if it is a valid session id: it can be used in a header, a log and a URL unchanged.

    >>> check_id("user-17:a")
    'user-17:a'

    Raises `ValueError`: it is not valid. The message contains no part of it.
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
    return blake2b(client.encode(), digest_size=_KEY_BYTES, key=_name_key(namespace), person=_CLIENT_PERSON).digest()


@lru_cache(maxsize=16384)  # a request reads its record and writes it
def store_key(id: str, namespace: str) -> bytes:  # noqa: A002 - the standard term
    """Return the key of a session's record: 16 bytes, different in every namespace.

    The id cannot be computed from it, so a copied store grants no access to sessions with ids that cannot be guessed.

    >>> store_key("a", "tagger").hex() == store_key("a", "scorer").hex()
    False
    """
    return blake2b(id.encode(), digest_size=_KEY_BYTES, key=_name_key(namespace), person=_ID_PERSON).digest()


@lru_cache(maxsize=64)  # the models of a process
def _name_key(namespace: str) -> bytes:
    return blake2b(namespace.encode(), digest_size=32, person=_NAMESPACE_PERSON).digest()
