import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.sessions.session import CorruptRecordError, decode_session, store_key
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoredRecord, StoreUnavailableError

LIMITS = Limits(sessions=1000, bytes=1 << 26, idle_seconds=600, client_sessions=50)
PAGE = 8192
IDS = [f"session-{number}" for number in range(60)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's file with tables and indexes of several pages."""
    store = SqliteStore(tmp_path_factory.mktemp("whole"), "m", LIMITS)
    store.write([RecordUpdate(id, id.encode() * 80, None, client=id[-1]) for id in IDS])  # noqa: A001 - the standard term
    store.close()
    return store.file


@pytest.mark.ci
@given(
    page=st.integers(0, 100),
    changes=st.lists(
        st.tuples(st.integers(0, PAGE - 1) | st.integers(0, 120), st.integers(0, 255)), min_size=1, max_size=20
    ),
)
@example(page=0, changes=[(59, 2)])  # the encoding of texts
@example(page=0, changes=[(36, 1)])  # the number of free pages
def test_a_damaged_page_fails_as_an_unavailable_store(whole: Path, page: int, changes: list[tuple[int, int]]) -> None:
    """Another error would fail all requests of a batch, and would not say what to do."""
    damaged = bytearray(whole.read_bytes())
    for place, value in changes:
        damaged[page % (len(damaged) // PAGE) * PAGE + place] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.sessions"
        file.touch(0o600)
        file.write_bytes(damaged)
        store = SqliteStore(Path(folder), "m", LIMITS)
        for call in (
            lambda: _decode(store.read(IDS)),
            lambda: store.write([RecordUpdate(IDS[3], b"next", 1), RecordUpdate("new", b"first", None)]),
            lambda: store.write([RecordUpdate(IDS[5], b"", 1, ended=True)]),
            store.totals,
        ):
            with suppress(StoreUnavailableError):
                call()
        store.close()


def _decode(records: list[StoredRecord | None]) -> None:
    for record in records:
        if record is not None:
            with suppress(CorruptRecordError):
                decode_session(record.record, store_key("", "m"))


def test_wrong_values_of_a_damaged_page_are_told(whole: Path, tmp_path: Path) -> None:
    damaged = bytearray(whole.read_bytes())
    damaged[damaged.index(b"tablesession") + len("table")] = 0x94  # a name that is not UTF-8, as SQLite's message of it
    file = tmp_path / "m.sessions"
    file.touch(0o600)
    file.write_bytes(damaged)

    with pytest.raises(StoreUnavailableError, match=r"holds wrong values \(.*move it away, with m\.sessions-wal and"):
        SqliteStore(tmp_path, "m", LIMITS).read(IDS)


@pytest.mark.ci
def test_a_session_that_is_begun_again_never_has_its_former_record(tmp_path: Path) -> None:
    ids = [f"session-{number}" for number in range(600)]
    file = tmp_path / "m.sessions"
    _write(tmp_path, ids, b"former")
    whole = file.read_bytes()
    refused = 0
    for name in ids[::20]:
        place = _in_index(whole, store_key(name, "m"))
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :])
        with closing(SqliteStore(tmp_path, "m", LIMITS)) as store:
            lost = [id for id, record in zip(ids, store.read(ids), strict=True) if record is None]  # noqa: A001
        try:
            _write(tmp_path, lost, b"again")
        except StoreUnavailableError:
            refused += 1
        else:
            with closing(SqliteStore(tmp_path, "m", LIMITS)) as store:
                assert {record.record for record in store.read(lost) if record is not None} <= {b"again" * 40}
    assert 0 < refused < 30


def _write(directory: Path, ids: list[str], record: bytes) -> None:
    with closing(SqliteStore(directory, "m", LIMITS)) as store:
        store.write([RecordUpdate(id, record * 40, None) for id in ids])  # noqa: A001 - the standard term


def _in_index(data: bytes, key: bytes) -> int:
    """Return the place of a key in a page of the index: its first byte is 2 or 10."""
    place = data.index(key)
    while data[place // PAGE * PAGE] not in (2, 10):
        place = data.index(key, place + 1)
    return place
