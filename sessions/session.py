"""A session, and its compact bytes in a store: nothing but what was written is ever read."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True)
class Reply:
    """The answer to a piece, as it was sent: a retried piece gets the very same."""

    body: bytes
    content_type: str


@dataclass(frozen=True)
class Session:
    """What a session is after a piece was applied."""

    steps: int
    """Timesteps applied since it began."""
    last_start: int
    """Timesteps that were applied before the last piece: a piece that begins there is that piece once more."""
    last_digest: bytes
    """Of the last piece's content, to tell it from another piece that begins at the same timestep."""
    last_reply: Reply
    state: bytes
    """What the next piece goes on from: the model's carried values. Empty once the session has ended."""
    model: bytes
    """Which models can go on from this state: 16 bytes."""
    ended: bool = False
    """The last piece was its end. Kept for a while, for that piece may be sent again."""


_FORMAT = 1
_CHECKSUM_BYTES = 8
_MODEL_BYTES = 16
# After the format byte and the checksum: ended, steps, last_start, model, then the bytes of digest, content type,
# body and state. Those follow, in this order.
_FIELDS = struct.Struct(f">?QQ{_MODEL_BYTES}sBHII")
_HEAD_BYTES = 1 + _CHECKSUM_BYTES + _FIELDS.size


class CorruptRecordError(Exception):
    """Bytes that are not what `encode_session` has made, or not all of it."""


def encode_session(session: Session) -> bytes:
    """The record of a session: 53 bytes, and its digest, state and last reply.

    Raises:
        ValueError: a field is beyond what a record holds.
    """
    reply = session.last_reply
    content_type = reply.content_type.encode()
    if len(session.model) != _MODEL_BYTES:
        raise ValueError(f"a session's model is told by {_MODEL_BYTES} bytes, not {len(session.model)}")
    try:
        fields = _FIELDS.pack(
            session.ended,
            session.steps,
            session.last_start,
            session.model,
            len(session.last_digest),
            len(content_type),
            len(reply.body),
            len(session.state),
        )
    except struct.error as error:
        raise ValueError(f"a session is beyond what its record holds: {error}") from error
    content = b"".join((fields, session.last_digest, content_type, reply.body, session.state))
    return b"".join((bytes((_FORMAT,)), _checksum(content), content))


def decode_session(record: bytes) -> Session:
    """What `encode_session` was given.

    Raises:
        CorruptRecord: a byte is missing, too many or another.
    """
    if len(record) < _HEAD_BYTES:
        raise CorruptRecordError(f"{len(record)} bytes are no session: its record has {_HEAD_BYTES} or more")
    if record[0] != _FORMAT:
        raise CorruptRecordError(f"a record of format {record[0]} cannot be read, only {_FORMAT}")
    content = record[1 + _CHECKSUM_BYTES :]
    if _checksum(content) != record[1 : 1 + _CHECKSUM_BYTES]:
        raise CorruptRecordError(f"the record of {len(record)} bytes is damaged: its checksum is another")
    ended, steps, last_start, model, *sizes = _FIELDS.unpack_from(content)
    digest, content_type, body, state = _split(content[_FIELDS.size :], sizes)
    return Session(steps, last_start, digest, Reply(body, content_type.decode()), state, model, ended)


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=_CHECKSUM_BYTES, person=bytes((_FORMAT,))).digest()


def _split(content: bytes, sizes: list[int]) -> list[bytes]:
    """`content` in parts of these sizes, which the checksum has vouched for."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(content[begin : begin + size])
        begin += size
    return parts
