"""Stores that the code of an old archive has written, and still writes: all sessions go on."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from redis_server import RedisServer, one_and_others_long, running, server_programs
from store_calls import WIDE, begin, records, revision

from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.settings import Limits, RedisSettings
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate, Store, Written

ARCHIVE = Path(__file__).parents[1] / "contracts" / "data" / "archives" / "stream_disk.mar"
WRITER = Path(__file__).with_name("old_writer.py")

LIMITS = replace(WIDE, confirm_seconds=6.0)
"""Old code starts, which takes seconds beside other tests, before an unconfirmed session ends."""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The unpacked archive."""
    with zipfile.ZipFile(ARCHIVE) as packed:
        packed.extractall(tmp_path / "archive")
    return tmp_path / "archive"


@pytest.fixture(params=["disk", *one_and_others_long(server_programs())])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Store]]:
    """A place as the old code names it, and a store of ours there."""
    if request.param == "disk":
        with closing(SqliteStore(tmp_path / "sessions", "tagger", LIMITS)) as store:
            yield str(tmp_path / "sessions"), store
        return
    with running(RedisServer(server_programs()[request.param], tmp_path)) as server:
        settings = RedisSettings(server.url, timeout_seconds=30.0)
        with closing(RedisStore(settings, "tagger", LIMITS)) as store:
            yield server.url, store


def old(archive: Path, where: str, action: str, *names: str) -> str:
    """Run a process of the old code, and return its output."""
    command = [sys.executable, str(WRITER), str(archive), where, action, *names]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_old_and_new_code_share_a_store(
    archive: Path, place: tuple[str, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive can be replaced, and put back, while its sessions go on."""
    for module in ("redis.partition", "sqlite.store"):
        monkeypatch.setattr(f"torchserve_neuron_lstm.sessions.{module}._SWEEP_SECONDS", 0.0)
    where, store = place
    assert old(archive, where, "write", "a", "b") == "Written Written"

    assert records(store.read(["a", "b"])) == [b"by the old code"] * 2
    assert store.write([RecordUpdate("a", b"by the new code", revision(store, "a"))]) == [Written()]
    begin(store, "c", record=b"begun by the new code")
    assert store.write([RecordUpdate("d", b"without an id", None, unconfirmed=True)]) == [Written()]
    assert old(archive, where, "read", *"abcd") == (
        "by the new code by the old code begun by the new code without an id"
    )
    assert old(archive, where, "write", *"acde") == " ".join(["Written"] * 4)
    assert records(store.read([*"abcde"])) == [b"by the old code"] * 5
    # The one without an id was continued, by code that does not know that it was unconfirmed.
    time.sleep(LIMITS.confirm_seconds + 0.1)
    begin(store, "f")
    assert records(store.read([*"abcde"])) == [b"by the old code"] * 5
    assert store.totals()[:2] == (6, 5 * len(b"by the old code") + 6)


def test_an_old_file_is_taken_over_with_what_is_in_it(archive: Path, tmp_path: Path) -> None:
    """It can shrink from then on, and its counters are right."""
    where = tmp_path / "sessions"
    old(archive, str(where), "write", *(f"{number}" for number in range(50)))
    store = SqliteStore(where, "tagger", WIDE)

    assert store.totals()[:2] == (50, 50 * len(b"by the old code"))
    assert store.expired() == 0
    store.close()
    with closing(sqlite3.connect(store.file)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_an_old_file_that_others_use_is_taken_over_all_the_same(archive: Path, tmp_path: Path) -> None:
    """A file that cannot be rewritten yet is rewritten at the next opening."""
    where = tmp_path / "sessions"
    old(archive, str(where), "write", "a")
    store = SqliteStore(where, "tagger", WIDE)
    with closing(sqlite3.connect(store.file, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM session").fetchall()
        assert records(store.read(["a"])) == [b"by the old code"]
        other.execute("COMMIT")
    begin(store, "b")
    store.close()
    assert records(store.read(["a", "b"])) == [b"by the old code", b"record"]


def test_the_first_look_at_an_old_file_ends_no_session(tmp_path: Path, archive: Path) -> None:
    """A clock that was ahead once has left a record of the future; one that is behind counts it as new."""
    where = tmp_path / "sessions"
    old(archive, str(where), "write", "a", "b")
    with closing(sqlite3.connect(SqliteStore(where, "tagger", WIDE).file)) as connection, connection:
        connection.execute("UPDATE session SET last = last + 601 WHERE key = (SELECT min(key) FROM session)")
        connection.execute("UPDATE session SET last = last - 800 WHERE key = (SELECT max(key) FROM session)")

    store = SqliteStore(where, "tagger", Limits(10, 1000, 900.0))
    begin(store, "c")
    assert records(store.read(["a", "b"])) == [b"by the old code"] * 2
    store.close()
