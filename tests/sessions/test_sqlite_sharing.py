"""Several workers on one file of sessions: locks, conflicts, and writers that are killed."""

import fcntl
import os
import signal
import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from memory_store import Clock
from store_calls import read, write

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.file import store_file
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoredRecord, StoreUnavailableError, Written

from .sqlite_stores import store_in, writer


def test_a_store_that_another_process_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_neuron_lstm.sessions.sqlite.store._BUSY_SECONDS", 0.2)
    store = store_in(tmp_path)
    write(store, "a", b"record")
    holder = sqlite3.connect(store.file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    assert read(store, "a") == b"record"
    with pytest.raises(StoreUnavailableError, match=r"locked; another process has held it for 0\.2 seconds"):
        store.write([RecordUpdate("b", b"", None)])
    holder.execute("ROLLBACK")
    holder.close()
    write(store, "b", b"record")


def test_a_process_that_hangs_while_it_opens_the_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_neuron_lstm.sessions.sqlite.store._BUSY_SECONDS", 0.2)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    with pytest.raises(StoreUnavailableError, match=r"locked; another process has held it for 0\.2 seconds"):
        store_in(tmp_path).read(["a"])
    with pytest.raises(StoreUnavailableError, match=r"held it for 0\.25 seconds"):  # the requests of others wait too
        store_in(tmp_path).write([])
    os.close(descriptor)
    write(store_in(tmp_path), "a", b"record")
    fcntl.flock(held := os.open(tmp_path, os.O_RDONLY), fcntl.LOCK_EX)  # for ever, by any user who can read the folder
    assert read(store_in(tmp_path), "a") == b"record"
    os.close(held)


@pytest.mark.few(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("action", ["rounds", "checkpoints"])
def test_a_killed_writer_loses_nothing_it_was_told_is_written(tmp_path: Path, action: str) -> None:
    random = Random(1)
    told = 0
    for _ in range(8):
        with writer(tmp_path, action, f"{told}") as process:
            assert process.stdout is not None
            process.stdout.readline()
            told = int(process.stdout.readline())
            time.sleep(random.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split("\n")
            told = max([told, *(int(line) for line in rest[:-1])])
        store = store_in(tmp_path)
        found = {read(store, f"{number}") for number in range(8)}
        store.close()
        assert len(found) == 1  # all eight of one call, or of the call before
        (record,) = found
        assert record is not None
        assert int(record[:10]) in (told, told + 1)  # it may have ended before its report
        told = int(record[:10])
        connection = sqlite3.connect(store_file(tmp_path, "tagger"))
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT open, bytes FROM tally").fetchone() == (8, 8 * len(record))
        connection.close()
    assert told >= 8


def test_processes_at_once_lose_no_write(tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(writer(tmp_path, "add", "40")) for _ in range(3)]
        assert [process.wait(60) for process in processes] == [0, 0, 0]

    assert read(store_in(tmp_path), "sum") == b"120"


def test_a_record_that_the_reader_knows_is_told_as_another_wrote_removed_or_outlived_it(tmp_path: Path) -> None:
    clock = Clock()
    limits = Limits(sessions=1000, bytes=100_000_000, idle_seconds=900.0)
    first = SqliteStore(tmp_path, "tagger", limits, clock)
    names = ["idle", "written", "ended"]
    outcomes = first.write([RecordUpdate(name, b"record", None) for name in names])
    known = {name: one.revision for name, one in zip(names, outcomes, strict=True) if isinstance(one, Written)}
    revisions = {name: revision for name, revision in known.items() if revision is not None}

    assert first.read(names, revisions) == [StoredRecord(b"", revisions[name]) for name in names]

    second = SqliteStore(tmp_path, "tagger", limits, clock)
    write(second, "written", b"by the other worker")
    assert second.write([RecordUpdate("ended", b"end", revisions["ended"], ended=True)]) == [Written()]
    assert [one and one.record for one in first.read(names, revisions)] == [b"", b"by the other worker", b"end"]

    clock.now += 901
    assert first.read(["idle"], revisions) == [None]
    first.close()
    second.close()


def test_two_store_objects_in_one_process_hold_each_other_s_locks(tmp_path: Path) -> None:
    """A closed store takes no locks from the other: the system drops a process's locks with any close."""
    first, second = store_in(tmp_path), store_in(tmp_path)
    write(first, "a", b"record")
    write(second, "a", b"next")
    second.close()
    with writer(tmp_path, "add", "5") as process:
        assert process.wait(60) == 0
    write(first, "b", b"record")

    assert read(first, "sum") == b"5"
    assert read(store_in(tmp_path), "b") == b"record"
    assert store_in(tmp_path).totals().sessions == 3
