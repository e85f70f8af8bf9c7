import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from memory_store import Clock
from store_calls import read, write

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreFullError, Written

from .sqlite_stores import LIMITS, store_in, writer


class SmallDisk(SqliteStore):
    pages = 44

    def _connection(self, seconds: float) -> sqlite3.Connection:
        connection = super()._connection(seconds)
        connection.execute(f"PRAGMA max_page_count = {self.pages}")
        return connection


def test_a_full_disk_refuses_what_does_not_fit_and_keeps_what_does(tmp_path: Path) -> None:
    store = SmallDisk(tmp_path, "tagger", LIMITS)
    for number in range(20):
        write(store, f"{number}", bytes(6000))

    with pytest.raises(StoreFullError, match="database or disk is full; make room on its disk"):
        store.write([RecordUpdate(f"new {number}", bytes(6000), None) for number in range(100)])
    assert [read(store, f"{number}") for number in range(20)] == [bytes(6000)] * 20
    assert store.read([f"new {number}" for number in range(100)]) == [None] * 100
    assert store.totals()[:2] == (20, 120_000)
    write(store, "0", bytes(range(250)) * 24)

    store.pages = 10_000
    assert store.write([RecordUpdate(f"new {number}", bytes(6000), None) for number in range(100)]) == [Written()] * 100


def test_ended_sessions_are_removed_as_fast_as_others_end(tmp_path: Path) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path, "tagger", Limits(1000, 10**9, 100.0, 10.0), clock)
    for second in range(30):
        for call in range(5):
            store.write([RecordUpdate(f"{second} {call} {number}", b"record", None, True) for number in range(60)])
        clock.now += 1
    store.close()

    with closing(sqlite3.connect(store.file)) as connection:
        (kept,) = connection.execute("SELECT count(*) FROM session").fetchone()
    assert 300 * 10 <= kept <= 300 * (10 + 5 + 1)


def test_what_is_counted_is_what_is_there(tmp_path: Path) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path, "tagger", Limits(50, 20_000, 100.0, 10.0), clock)
    random = Random(0)
    for _ in range(400):
        names = random.sample(range(100), 8)
        store.write(
            [
                RecordUpdate(f"{name}", bytes(random.randrange(900)), one and one.revision, random.random() < 0.1)
                for name, one in zip(names, store.read([f"{name}" for name in names]), strict=True)
            ]
        )
        clock.now += random.choice((0, 0, 1, 20))
    store.close()

    connection = sqlite3.connect(store.file)
    counted = connection.execute("SELECT open, bytes FROM tally").fetchone()
    there = connection.execute("SELECT sum(NOT ended), sum(length(record)) FROM session").fetchone()
    wrong_sizes = connection.execute("SELECT count(*) FROM session WHERE size <> length(record)").fetchone()
    connection.close()
    assert counted == there
    assert wrong_sizes == (0,)


def test_no_write_removes_more_than_some_sessions(tmp_path: Path) -> None:
    """Other processes wait during a write, so the rest is left for the next ones."""
    clock = Clock()
    store = SqliteStore(tmp_path, "tagger", LIMITS, clock)
    store.write([RecordUpdate(f"{number}", b"", None) for number in range(500)])
    clock.now += 1000
    expired = []
    for _ in range(4):
        store.write([])
        expired.append(store.expired())
        clock.now += 10

    assert expired == [200, 200, 100, 0]


def test_facts_about_sessions_that_have_expired_take_no_memory(tmp_path: Path) -> None:
    clock = Clock()
    with closing(SqliteStore(tmp_path, "tagger", Limits(9999, 10**8, idle_seconds=60.0), clock)) as store:
        for number in range(50):
            clock.now += 30
            store.write([RecordUpdate(f"{number}-{place}", b"record", None) for place in range(100)])
        kept = sum(len(one) for one in vars(store).values() if isinstance(one, dict))

    assert 0 < kept <= 300


def test_a_file_that_must_not_grow_is_told_and_whole_afterwards(tmp_path: Path) -> None:
    """A real limit of the system is set in a separate process; there is no other way to fail."""
    with writer(tmp_path, "limited") as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        last = process.stdout.readline()
        assert process.wait(60) == 0

    assert first.startswith("StoreUnavailable: the session store ")
    kept = int(last)
    store = store_in(tmp_path)
    assert [read(store, f"{number}") for number in range(kept + 2)] == [bytes(6000)] * kept + [b"after", None]
    assert store.totals()[:2] == (kept + 1, 6000 * kept + 5)
