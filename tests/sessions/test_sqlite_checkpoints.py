"""Checkpoints beside transactions: the log is copied, begins again, and nothing is lost."""

import sqlite3
import threading
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from shutil import copyfile

import pytest
from store_calls import write
from waiting import wait_for

from torchserve_neuron_lstm.sessions.sqlite.file import open_database, open_for_checkpoints
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore

from .sqlite_stores import store_in

PAGE = 4096
CHECKPOINTS = "torchserve_neuron_lstm.sessions.sqlite.checkpoints"


def write_number(store: SqliteStore, number: int) -> None:
    write(store, f"{number}", bytes(6000))


def sessions_without_log(store: SqliteStore, folder: Path) -> int:
    """The sessions in the database file alone."""
    copyfile(store.file, folder / "copy")
    with closing(sqlite3.connect(folder / "copy")) as connection:
        try:
            (count,) = connection.execute("SELECT count(*) FROM session").fetchone()
        except sqlite3.Error:  # it was copied while the thread wrote to it
            return 0
    return int(count)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_the_log_is_copied_without_a_further_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CHECKPOINTS}._BYTES", 10 * 6000)
    with closing(store_in(tmp_path / "sessions")) as store:
        for number in range(9):
            write_number(store, number)
        assert "session checkpoints" not in threads()
        assert sessions_without_log(store, tmp_path) == 0

        write_number(store, 9)
        wait_for(lambda: sessions_without_log(store, tmp_path) == 10)


def test_a_long_log_begins_again_while_requests_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CHECKPOINTS}._BYTES", 6000)
    monkeypatch.setattr(f"{CHECKPOINTS}._LONG_LOG_PAGES", 20)
    with closing(store_in(tmp_path)) as store:
        log = store.file.with_name(f"{store.file.name}-wal")
        numbers = count(1)

        def has_begun_again() -> bool:
            write_number(store, (written := next(numbers)) % 10)
            time.sleep(0.0002)
            return written > 100 and log.stat().st_size < written * PAGE  # each write adds a page and more

        wait_for(has_begun_again)


def test_a_closed_store_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CHECKPOINTS}._BYTES", 1)
    store = store_in(tmp_path)
    for number in range(20):
        write_number(store, number)
        assert "session checkpoints" in threads()
        store.close()
        assert "session checkpoints" not in threads()
    assert store.totals()[:2] == (20, 20 * 6000)
    store.close()


def test_the_log_of_one_file_is_not_copied_to_another(tmp_path: Path) -> None:
    connection, identity = open_database(tmp_path / "tagger.sessions", 1.0)
    connection.close()
    open_for_checkpoints(tmp_path / "tagger.sessions", identity, 1.0).close()
    other = identity[0], identity[1] + 1
    with pytest.raises(FileNotFoundError, match="moved or deleted"):
        open_for_checkpoints(tmp_path / "tagger.sessions", other, 1.0)
    (tmp_path / "tagger.sessions").unlink()
    with pytest.raises(FileNotFoundError, match="moved or deleted"):
        open_for_checkpoints(tmp_path / "tagger.sessions", identity, 1.0)
    assert not (tmp_path / "tagger.sessions").exists()


def test_requests_go_on_where_no_checkpoint_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records stay in the log, which grows; the cause is told once, because no request may meet it."""

    def refuse(*_: object) -> sqlite3.Connection:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(f"{CHECKPOINTS}._BYTES", 1)
    monkeypatch.setattr("torchserve_neuron_lstm.sessions.sqlite.store.open_for_checkpoints", refuse)
    with closing(store_in(tmp_path)) as store:
        for number in range(20):
            write_number(store, number)
        wait_for(lambda: bool(caplog.records))
        for number in range(20, 40):
            write_number(store, number)
        assert store.totals()[:2] == (40, 40 * 6000)
    (told,) = caplog.records
    assert (
        "the log of the session store (-wal) grows: it cannot be copied into its database: disk I/O error"
        in told.message
    )


def test_a_system_without_room_for_a_thread_loses_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{CHECKPOINTS}._BYTES", 1)
    with closing(store_in(tmp_path)) as store:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            write_number(store, 1)
        assert "can't start new thread" in caplog.text
        write_number(store, 2)
        wait_for(lambda: sessions_without_log(store, tmp_path) == 2)


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
