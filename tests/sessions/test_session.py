from hashlib import blake2b

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.session import (
    CorruptRecordError,
    Reply,
    Session,
    check_id,
    decode_session,
    encode_session,
    make_id,
    store_key,
)

KEY = store_key("a", "model")
SESSION = Session(
    12, 10, bytes(8), Reply(b'{"y": [1.5]}', "application/json"), b"state" * 3, b"model of sixteen", False
)
ID_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~:-"

ids = st.text(ID_CHARACTERS, min_size=1, max_size=128)
steps = st.sampled_from((0, 1, 2**32, 2**64 - 1)) | st.integers(0, 1000)
content_types = st.sampled_from(("", "application/json", "text/plain; charset=utf-8", "naïve/型")) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=20
)
sessions = st.builds(
    Session,
    steps=steps,
    last_start=steps,
    last_digest=st.binary(max_size=32),
    last_reply=st.builds(Reply, st.binary(max_size=80), content_types),
    state=st.binary(max_size=200),
    model=st.binary(min_size=16, max_size=16),
    ended=st.booleans(),
)


@given(sessions)
def test_a_session_is_read_as_it_was_written(session: Session) -> None:
    assert decode_session(encode_session(session, KEY), KEY) == session


@given(sessions, st.data())
def test_a_record_of_another_size_is_found(session: Session, data: st.DataObject) -> None:
    record = encode_session(session, KEY)

    with pytest.raises(CorruptRecordError):
        decode_session(record[: data.draw(st.integers(0, len(record) - 1))], KEY)
    with pytest.raises(CorruptRecordError):
        decode_session(record + data.draw(st.binary(min_size=1, max_size=9)), KEY)


@pytest.mark.parametrize("key", [store_key("b", "model"), store_key("a", "other"), bytes(16)])
def test_the_record_of_another_session_or_model_is_a_damaged_one(key: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="its checksum differs"):
        decode_session(encode_session(SESSION, KEY), key)


def test_every_bit_of_one_record_counts() -> None:
    record = encode_session(SESSION, KEY)
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordError):
            decode_session(bytes(damaged), KEY)


@given(st.binary(max_size=120), st.sampled_from((0, 45, 48, 52)))
def test_bytes_with_a_right_checksum_are_a_whole_record_or_corrupt(junk: bytes, kept: int) -> None:
    """Anyone who can write to the store can compute the checksum: sizes, texts and flags are checked too."""
    content = encode_session(SESSION, KEY)[9 : 9 + kept] + junk
    record = b"\x01" + blake2b(KEY + content, digest_size=8, person=b"\x01").digest() + content

    try:
        session = decode_session(record, KEY)
    except CorruptRecordError:
        return
    assert encode_session(session, KEY) == record


def test_a_record_of_a_later_format_says_so() -> None:
    with pytest.raises(CorruptRecordError, match="the record has format 2, and this code reads format 1"):
        decode_session(b"\x02" + encode_session(SESSION, KEY)[1:], KEY)


def test_a_record_is_little_more_than_what_it_keeps() -> None:
    kept = len(SESSION.last_digest + SESSION.last_reply.body + SESSION.state) + len(SESSION.last_reply.content_type)

    assert len(encode_session(SESSION, KEY)) == kept + 53


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
    with pytest.raises(ValueError):
        encode_session(session, KEY)


@given(st.text(max_size=200) | ids)
@example("")
@example("a\n")
@example("a\r\nSet-Cookie: b")
@example("é")
@example("\uff21")  # a letter, and a digit, of another script
@example("\u0661")
@example("a" * 129)
@example("a" * 128 + "\0")
@example("\ud800")
def test_only_short_ids_of_plain_characters_are_taken(text: str) -> None:
    if 1 <= len(text) <= 128 and set(text) <= set(ID_CHARACTERS):
        assert check_id(text) == text
    else:
        with pytest.raises(ValueError, match="a session id has 1 to 128 characters"):
            check_id(text)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("", "this one has 0"), ("a" * 200, "this one has 200"), ("ab<c>", "character 3 is another one")],
)
def test_a_refusal_says_what_is_wrong_and_repeats_nothing(text: str, wrong: str) -> None:
    """The message may be in a header or a log."""
    with pytest.raises(ValueError) as refusal:
        check_id(text)

    assert str(refusal.value) == (f"a session id has 1 to 128 characters, only A-Z a-z 0-9 . _ ~ : -, but {wrong}")


def test_a_made_id_is_an_id_and_never_the_same() -> None:
    made = {check_id(make_id()) for _ in range(1000)}

    assert len(made) == 1000
    assert {len(text) for text in made} == {24}


@given(st.sets(st.tuples(ids, st.sampled_from(("", "a", "tagger", "型", "x" * 300))), min_size=2, max_size=5))
def test_each_id_of_each_namespace_has_a_key_of_its_own(named: set[tuple[str, str]]) -> None:
    keys = {store_key(*pair) for pair in named}

    assert len(keys) == len(named)
    assert keys == {store_key(*pair) for pair in named}
    assert {len(key) for key in keys} == {16}


def test_a_key_is_the_same_in_every_version() -> None:
    """Otherwise an upgrade would lose sessions."""
    assert store_key("user-17", "tagger").hex() == "0e00e87456f830f613167f9f80a06e87"
