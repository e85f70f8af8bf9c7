"""Records of sessions, as a worker reads them from a store.

The property: a record is read, or refused with a `CorruptRecordError`; one that is read is written with the same
bytes. The checksum is no secret, so the property also holds for records with a right checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from random import Random

from torchserve_neuron_lstm.sessions.session import (
    CorruptRecordError,
    Reply,
    Session,
    decode_session,
    encode_session,
)

from ..properties import require
from ..target import OctetMutation, Target

_CHECKSUM = slice(1, 9)
_FIELDS = slice(9, 53)
"""Bytes of the fields of a fixed size, which end with the sizes of the others."""
_AWKWARD = (b"\x00", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\xc3")


def seeds() -> Mapping[str, bytes]:
    """Return records of sessions that are open, ended and empty: all of them are read."""
    model, reply = bytes(range(16)), Reply(b'{"means":[1.5]}', "application/json")
    sessions = {
        "open": Session(12, 10, bytes(16), reply, b"\x00\x00\x80?" * 3, model),
        "ended": Session(2**64 - 1, 0, b"end", reply, b"", model, ended=True),
        "empty": Session(0, 0, b"", Reply(b"", ""), b"", bytes(16)),
    }
    return {name: encode_session(session) for name, session in sessions.items()}


def mutate(content: bytes, random: Random, mutate_octets: OctetMutation) -> bytes:
    """Change fields or other bytes of a record, and mostly make its checksum right again."""
    changed = bytearray(content)
    if random.random() < 0.6 and len(content) >= _FIELDS.stop:
        value = random.choice(_AWKWARD)
        place = random.randrange(_FIELDS.start, _FIELDS.stop + 1 - len(value))
        changed[place : place + len(value)] = value
    else:
        changed = bytearray(mutate_octets(content))
    if random.random() < 0.9 and len(changed) > _CHECKSUM.stop:
        changed[0] = 1
        changed[_CHECKSUM] = blake2b(bytes(changed[_FIELDS.start :]), digest_size=8, person=b"\x01").digest()
    return bytes(changed)


def check(content: bytes) -> None:
    """Read these bytes as a record.

    Raises:
        PropertyViolation: they are read as a session that is written with other bytes.
    """
    try:
        session = decode_session(content)
    except CorruptRecordError:
        return
    require(encode_session(session) == content, "a record that was read is written with the same bytes")


TARGET = Target(seeds, mutate, check, {"sessions/session.py": ("encode_session",)})
