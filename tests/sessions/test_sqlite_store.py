from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from memory_store import Clock

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite_file import store_file, stored_models
from torchserve_neuron_lstm.sessions.sqlite_store import SqliteStore
from torchserve_neuron_lstm.sessions.store import (
    Conflict,
    RecordUpdate,
    StoredRecord,
    StoreFullError,
    StoreUnavailableError,
    Written,
)

LIMITS = Limits(sessions=1000, bytes=100_000_000, idle_seconds=900.0)
WRITER = Path(__file__).with_name("sqlite_writer.py")


def store_in(directory: Path) -> SqliteStore:
    """A store of one model."""
    return SqliteStore(directory, "tagger", LIMITS)


def write(store: SqliteStore, name: str, record: bytes) -> None:
    """Write a record in the place of the stored one."""
    (found,) = store.read([name])
    assert store.write([RecordUpdate(name, record, found and found.revision)]) == [Written()]


def read(store: SqliteStore, name: str) -> bytes | None:
    """The stored record."""
    (found,) = store.read([name])
    return found and found.record


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for an action of another process."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def files(directory: Path) -> dict[str, str]:
    """The names and modes of the files."""
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in directory.iterdir()}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the umask for the context."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def writer(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A separate process that writes and reports its writes; it is killed in the end."""
    command = [sys.executable, str(WRITER), str(directory), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777], ids=oct)
def test_nobody_else_can_read_the_files(tmp_path: Path, mask: int) -> None:
    """This holds for any umask, also while the log exists."""
    store = store_in(tmp_path / "sessions")
    with umask(mask):
        write(store, "a", b"record")

    assert oct(stat.S_IMODE((tmp_path / "sessions").stat().st_mode)) == "0o700"
    assert files(tmp_path / "sessions") == dict.fromkeys(
        ("tagger.sessions", "tagger.sessions-wal", "tagger.sessions-shm"), "0o600"
    )


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    """The file may be a copy."""
    store = store_in(tmp_path)
    write(store, "a", b"record")
    store.close()
    store.file.chmod(0o644)

    assert read(store_in(tmp_path), "a") == b"record"
    assert files(tmp_path)["tagger.sessions"] == "0o600"


def test_sessions_are_not_kept_where_every_user_can_write(tmp_path: Path) -> None:
    """Another user could replace our file. The message says what to do."""
    tmp_path.chmod(0o1777)
    with pytest.raises(StoreUnavailableError, match="where every user can write: name a new folder in it"):
        store_in(tmp_path).read(["a"])

    write(store_in(tmp_path / "sessions"), "a", b"record")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A link to a file and a link to a missing file are refused."""
    for target in (tmp_path / "elsewhere", tmp_path / "tagger.txt"):
        store_file(tmp_path, "tagger").unlink(missing_ok=True)
        store_file(tmp_path, "tagger").symlink_to(target)
        with pytest.raises(StoreUnavailableError, match="is not a regular file; move it away"):
            store_in(tmp_path).read(["a"])
        target.write_text("")
    assert (tmp_path / "elsewhere").read_text() == ""


def test_neither_ids_nor_names_of_models_lead_out_of_the_folder(tmp_path: Path) -> None:
    """A model's name is encoded in its file's name, and can be decoded."""
    for model in ("../up", "a/b", "naïve 型", "100%"):
        SqliteStore(tmp_path / "sessions", model, LIMITS).write([RecordUpdate("a", b"", None)])

    assert [path.name for path in tmp_path.iterdir()] == ["sessions"]
    assert stored_models(tmp_path / "sessions") == ["../up", "100%", "a/b", "naïve 型"]
    assert stored_models(tmp_path / "nowhere") == []


def test_the_file_holds_no_id(tmp_path: Path) -> None:
    """A copy of the file gives no session."""
    store = store_in(tmp_path)
    write(store, "the-id-of-somebody", b"the record of somebody")

    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"the record of somebody" in everything
    assert b"the-id-of" not in everything


def test_nothing_is_opened_before_the_first_call(tmp_path: Path) -> None:
    """A server without sessions has no files for them."""
    SqliteStore(tmp_path / "sessions", "tagger", LIMITS).close()

    assert list(tmp_path.iterdir()) == []


def test_a_closed_store_leaves_one_file_and_opens_again(tmp_path: Path) -> None:
    """The records are unchanged."""
    store = store_in(tmp_path)
    write(store, "a", b"record")
    store.close()

    assert list(files(tmp_path)) == ["tagger.sessions"]
    assert read(store, "a") == b"record"


def test_a_deleted_file_is_made_anew(tmp_path: Path) -> None:
    """All stores that have it open make one new file, with or without its companion files."""
    for kept in ((), ("-wal",), ("-shm",), ("-wal", "-shm")):
        first, second = store_in(tmp_path), store_in(tmp_path)
        write(first, "a", b"before")
        assert read(second, "a") == b"before"
        for suffix in {"", "-wal", "-shm"} - set(kept):
            first.file.with_name(first.file.name + suffix).unlink()

        assert read(first, "a") is None
        write(first, "b", b"after")
        assert read(second, "a") is None
        assert read(second, "b") == b"after"
        write(second, "b", b"by the other")
        assert read(first, "b") == b"by the other"
        first.close()
        second.close()
        assert read(store_in(tmp_path), "b") == b"by the other"
        first.file.unlink()


def test_a_file_that_is_deleted_while_others_write_is_whole_when_made_anew(tmp_path: Path) -> None:
    """Its companion files remain, and the other processes still have them open."""
    with writer(tmp_path, "rounds", "0") as process:
        assert process.stdout is not None
        store = store_in(tmp_path)
        process.stdout.readline()
        for number in range(10):
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            store.file.unlink()
            for name in range(20):
                write(store, f"{number} {name}", bytes(6000))
            process.send_signal(signal.SIGCONT)
            wait_for(lambda: read(store, "0") is not None)
            assert [read(store, f"{number} {name}") for name in range(20)] == [bytes(6000)] * 20
    store.close()

    connection = sqlite3.connect(store.file)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_file_that_was_replaced_is_what_counts(tmp_path: Path) -> None:
    """An example is a backup that is restored after the file and its companions were removed."""
    store, other = store_in(tmp_path / "here"), store_in(tmp_path / "there")
    write(store, "a", b"here")
    write(other, "a", b"there")
    other.close()
    for path in store.file.parent.iterdir():
        path.unlink()

    other.file.rename(store.file)

    assert read(store, "a") == b"there"


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 50_000, b"no database " * 5000, b"SQLite format 3\x00" + b"\xff" * 20_000]
)
def test_garbage_in_its_place_is_told_and_not_overwritten(tmp_path: Path, garbage: bytes) -> None:
    """To recover, move the file away, as the message says."""
    store = store_in(tmp_path)
    write(store, "a", b"record")
    store.close()
    store.file.write_bytes(garbage)

    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=r"the session store .*tagger\.sessions.*move it away"):
            store.read(["a"])
        with pytest.raises(StoreUnavailableError):
            store.write([RecordUpdate("a", b"", None)])
    assert store.file.read_bytes() == garbage
    store.file.rename(tmp_path / "away")
    write(store, "a", b"anew")
    assert read(store, "a") == b"anew"


def test_garbage_under_an_open_connection_is_told(tmp_path: Path) -> None:
    """The error appears when the overwritten part is read; no call fails in any other way."""
    store = store_in(tmp_path)
    for number in range(100):
        write(store, f"{number}", bytes(6000))
    store.close()
    assert read(store, "0") is not None
    with store.file.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (store.file.stat().st_size - 8192))

    readable = 0
    for number in range(100):
        with suppress(StoreUnavailableError):
            read(store, f"{number}")
            readable += 1
    assert readable < 50
    store.file.unlink()
    write(store, "0", b"anew")


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    """A database of another program is not changed either."""
    store = store_in(tmp_path)
    for statement in ("PRAGMA user_version = 7", "CREATE TABLE something (x)"):
        connection = sqlite3.connect(store.file)
        connection.execute(statement)
        connection.close()
        before = store.file.read_bytes()
        with pytest.raises(
            StoreUnavailableError, match="was written by another version of this software; move it away"
        ):
            store.read(["a"])
        assert store.file.read_bytes() == before
        store.file.unlink()


def test_a_file_in_the_folders_place_is_told(tmp_path: Path) -> None:
    """The store works after that file was removed."""
    (tmp_path / "sessions").write_text("")
    store = store_in(tmp_path / "sessions")
    with pytest.raises(StoreUnavailableError, match="the server must be able to write to it and to its folder"):
        store.read(["a"])
    (tmp_path / "sessions").unlink()

    write(store, "a", b"record")


def test_a_name_that_no_file_can_have_is_told(tmp_path: Path) -> None:
    """File systems limit the length of names."""
    with pytest.raises(StoreUnavailableError, match="File name too long"):
        SqliteStore(tmp_path, "x" * 300, LIMITS).read(["a"])


class SmallDisk(SqliteStore):
    """A file that cannot grow beyond some pages, as on a full disk."""

    pages = 44

    def _connection(self) -> sqlite3.Connection:
        connection = super()._connection()
        connection.execute(f"PRAGMA max_page_count = {self.pages}")
        return connection


def test_a_full_disk_refuses_what_does_not_fit_and_keeps_what_does(tmp_path: Path) -> None:
    """A call is written whole or not at all; the store continues when there is space again."""
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


def test_a_store_that_another_process_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store waits for it first; reading is possible meanwhile."""
    monkeypatch.setattr("torchserve_neuron_lstm.sessions.sqlite_store._BUSY_SECONDS", 0.2)
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
    """Other processes do not hang."""
    monkeypatch.setattr("torchserve_neuron_lstm.sessions.sqlite_store._BUSY_SECONDS", 0.2)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    with pytest.raises(StoreUnavailableError, match=r"locked; another process has held it for 0\.2 seconds"):
        store_in(tmp_path).read(["a"])
    os.close(descriptor)
    write(store_in(tmp_path), "a", b"record")


def test_what_is_counted_is_what_is_there(tmp_path: Path) -> None:
    """Many calls are made, some of them without any change."""
    clock = Clock()
    store = SqliteStore(tmp_path, "tagger", Limits(50, 20_000, 100.0, 10.0), clock)
    random = Random(0)
    for _ in range(400):
        names = random.sample(range(100), 8)
        found = store.read([f"{name}" for name in names])
        store.write(
            [
                RecordUpdate(f"{name}", bytes(random.randrange(900)), one and one.revision, random.random() < 0.1)
                for name, one in zip(names, found, strict=True)
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("action", ["rounds", "checkpoints"])
def test_a_killed_writer_loses_nothing_it_was_told_is_written(tmp_path: Path, action: str) -> None:
    """After kills at any moment, each call's changes are complete or absent, and the file is valid."""
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
    """All processes create the file, and increment one number."""
    with ExitStack() as stack:
        processes = [stack.enter_context(writer(tmp_path, "add", "40")) for _ in range(3)]
        assert [process.wait(60) for process in processes] == [0, 0, 0]

    assert read(store_in(tmp_path), "sum") == b"120"


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


def test_a_folder_that_cannot_be_written_to_is_told() -> None:
    """A process without special rights cannot write; it can as soon as the folder permits it."""
    # not below tmp_path, which other users cannot enter
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with writer(Path(directory) / "sessions", "read-only") as process:
            assert process.stdout is not None
            lines = process.stdout.read().split("\n")
            assert process.wait(60) == 0

    assert "the server must be able to write to it and to its folder" in lines[0]
    assert lines[1:] == ["written", ""]


def test_sessions_that_another_worker_wrote_meanwhile_are_the_only_conflicts_of_a_batch(tmp_path: Path) -> None:
    """The others are written, and what is counted is what is there."""
    first, second = store_in(tmp_path), store_in(tmp_path)
    names = [f"{number}" for number in range(6)]
    first.write([RecordUpdate(name, b"record", None) for name in names])
    found = [one for one in first.read(names) if one is not None]
    for name in ("1", "4"):
        write(second, name, b"by the other worker")

    outcomes = first.write([RecordUpdate(name, b"next", one.revision) for name, one in zip(names, found, strict=True)])

    lost = {"1", "4"}
    assert outcomes == [Conflict() if name in lost else Written() for name in names]
    assert [read(second, name) for name in names] == [
        b"by the other worker" if name in lost else b"next" for name in names
    ]
    assert second.totals()[:2] == (6, 4 * len(b"next") + 2 * len(b"by the other worker"))
    first.close()
    second.close()


def test_a_record_that_the_reader_knows_is_told_as_another_wrote_removed_or_outlived_it(tmp_path: Path) -> None:
    """Nothing is looked for as long as nobody else has written; then the file says what there is."""
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
    found = first.read(names, revisions)
    assert [one and one.record for one in found] == [b"", b"by the other worker", b"end"]

    clock.now += 901
    assert first.read(["idle"], revisions) == [None]
    first.close()
    second.close()


def test_nothing_is_remembered_of_a_file_that_another_has_replaced(tmp_path: Path) -> None:
    """The new file has none of the records that this store wrote to the old one."""
    store = store_in(tmp_path)
    (outcome,) = store.write([RecordUpdate("a", b"record", None)])
    assert isinstance(outcome, Written)
    assert outcome.revision is not None
    for path in tmp_path.iterdir():
        path.unlink()

    assert store.read(["a"], {"a": outcome.revision}) == [None]
    store.close()


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
