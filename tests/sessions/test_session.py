from __future__ import annotations

from dataclasses import replace

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
    """Every field of it, the empty ones too."""
    assert decode_session(encode_session(session)) == session


@given(sessions(), st.data())
def test_a_damaged_byte_is_found(session: Session, data: st.DataObject) -> None:
    """Wherever it is, whatever it has become."""
    record = bytearray(encode_session(session))
    place = data.draw(st.integers(0, len(record) - 1))
    record[place] ^= data.draw(st.integers(1, 255))

    with pytest.raises(CorruptRecordError):
        decode_session(bytes(record))


@given(sessions(), st.data())
def test_a_record_of_another_size_is_found(session: Session, data: st.DataObject) -> None:
    """Cut short anywhere, or followed by more."""
    record = encode_session(session)

    with pytest.raises(CorruptRecordError):
        decode_session(record[: data.draw(st.integers(0, len(record) - 1))])
    with pytest.raises(CorruptRecordError):
        decode_session(record + data.draw(st.binary(min_size=1, max_size=9)))


def test_every_bit_of_one_record_counts() -> None:
    """All of them, one after the other."""
    record = encode_session(SESSION)
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            decode_session(bytes(damaged))


def test_a_record_of_a_later_format_says_so() -> None:
    """A store that was written by another version is not taken for a damaged one."""
    with pytest.raises(CorruptRecordError, match="the record has format 2, and this code reads format 1"):
        decode_session(b"\x02" + encode_session(SESSION)[1:])


def test_a_record_is_little_more_than_what_it_keeps() -> None:
    """53 bytes more."""
    kept = len(SESSION.last_digest + SESSION.last_reply.body + SESSION.state) + len(SESSION.last_reply.content_type)

    assert len(encode_session(SESSION)) == kept + 53


@pytest.mark.parametrize(
    "session",
    [
        replace(SESSION, model=b"short"),
        replace(SESSION, steps=-1),
        replace(SESSION, steps=2**64),
        replace(SESSION, last_digest=bytes(256)),
        replace(SESSION, last_reply=Reply(b"", "x" * 65536)),
    ],
    ids=["a short model", "a negative step", "a huge step", "a long digest", "a long content type"],
)
def test_a_session_that_fits_no_record_is_refused(session: Session) -> None:
    """Nothing is cut to fit."""
    with pytest.raises(ValueError):
        encode_session(session)
