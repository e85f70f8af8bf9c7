from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.session import CorruptRecordError, Reply, Session, decode_session, encode_session

from .strategies import sessions

SESSION = Session(
    12, 10, bytes(8), Reply(b'{"y": [1.5]}', "application/json"), b"state" * 3, b"model of sixteen", False
)


@given(sessions())
def test_a_session_is_read_as_it_was_written(session: Session) -> None:
    """All fields are equal, also empty ones."""
    assert decode_session(encode_session(session)) == session


@given(sessions(), st.data())
def test_a_damaged_byte_is_found(session: Session, data: st.DataObject) -> None:
    """This holds for every position and every value."""
    record = bytearray(encode_session(session))
    place = data.draw(st.integers(0, len(record) - 1))
    record[place] ^= data.draw(st.integers(1, 255))

    with pytest.raises(CorruptRecordError):
        decode_session(bytes(record))


@given(sessions(), st.data())
def test_a_record_of_another_size_is_found(session: Session, data: st.DataObject) -> None:
    """Examples are truncated records and records with trailing bytes."""
    record = encode_session(session)

    with pytest.raises(CorruptRecordError):
        decode_session(record[: data.draw(st.integers(0, len(record) - 1))])
    with pytest.raises(CorruptRecordError):
        decode_session(record + data.draw(st.binary(min_size=1, max_size=9)))


def test_every_bit_of_one_record_counts() -> None:
    """Every bit is tried in turn."""
    record = encode_session(SESSION)
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            decode_session(bytes(damaged))


@given(st.binary(max_size=120), st.sampled_from((0, 45, 48, 52)))
def test_bytes_with_a_right_checksum_are_a_whole_record_or_corrupt(junk: bytes, kept: int) -> None:
    """Anyone who can write to the store can compute the checksum: sizes, texts and flags are checked too."""
    content = encode_session(SESSION)[9 : 9 + kept] + junk
    record = b"\x01" + blake2b(content, digest_size=8, person=b"\x01").digest() + content

    try:
        session = decode_session(record)
    except CorruptRecordError:
        return
    assert encode_session(session) == record


def test_a_record_of_a_later_format_says_so() -> None:
    """A record of another version is not reported as damaged."""
    with pytest.raises(CorruptRecordError, match="the record has format 2, and this code reads format 1"):
        decode_session(b"\x02" + encode_session(SESSION)[1:])


def test_a_record_is_little_more_than_what_it_keeps() -> None:
    """The overhead is 53 bytes."""
    kept = len(SESSION.last_digest + SESSION.last_reply.body + SESSION.state) + len(SESSION.last_reply.content_type)

    assert len(encode_session(SESSION)) == kept + 53


@pytest.mark.parametrize(
    "session",
    [
        SESSION._replace(model=b"short"),
        SESSION._replace(steps=-1),
        SESSION._replace(steps=2**64),
        SESSION._replace(last_digest=bytes(256)),
        SESSION._replace(last_reply=Reply(b"", "x" * 65536)),
    ],
    ids=["a short model", "a negative step", "a huge step", "a long digest", "a long content type"],
)
def test_a_session_that_fits_no_record_is_refused(session: Session) -> None:
    """No field is truncated."""
    with pytest.raises(ValueError):
        encode_session(session)
