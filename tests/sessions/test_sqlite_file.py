"""The file of a session store: who can read it, and what happens when it is deleted or damaged."""

import errno
import os
import signal
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

import pytest
from store_calls import read, write
from waiting import wait_for

from torchserve_neuron_lstm.sessions.sqlite.file import store_error, store_file
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreUnavailableError

from .sqlite_stores import LIMITS, store_in, writer


def files(directory: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in directory.iterdir()}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777], ids=oct)
def test_nobody_else_can_read_the_files(tmp_path: Path, mask: int) -> None:
    store = store_in(tmp_path / "sessions")
    with umask(mask):
        write(store, "a", b"record")

    assert oct(stat.S_IMODE((tmp_path / "sessions").stat().st_mode)) == "0o700"
    assert files(tmp_path / "sessions") == dict.fromkeys(
        ("tagger.sessions", "tagger.sessions-wal", "tagger.sessions-shm"), "0o600"
    )


@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_sessions_are_not_kept_where_other_users_can_write(tmp_path: Path, mode: int) -> None:
    """Another user could replace our file. The message says what to do."""
    tmp_path.chmod(mode)
    with pytest.raises(StoreUnavailableError, match="where other users can write: name a new folder in it"):
        store_in(tmp_path).read(["a"])

    write(store_in(tmp_path / "sessions"), "a", b"record")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    for target in (tmp_path / "elsewhere", tmp_path / "tagger.txt"):
        store_file(tmp_path, "tagger").unlink(missing_ok=True)
        store_file(tmp_path, "tagger").symlink_to(target)
        with pytest.raises(StoreUnavailableError, match="is not a regular file; move it away"):
            store_in(tmp_path).read(["a"])
        target.write_text("")
    assert (tmp_path / "elsewhere").read_text() == ""


def test_neither_ids_nor_names_of_models_lead_out_of_the_folder(tmp_path: Path) -> None:
    for model in ("../up", "a/b", "naïve 型", "100%"):
        SqliteStore(tmp_path / "sessions", model, LIMITS).write([RecordUpdate("a", b"", None)])

    assert [path.name for path in tmp_path.iterdir()] == ["sessions"]
    files = [path.name for path in (tmp_path / "sessions").glob("*.sessions")]
    assert sorted(unquote(name.removesuffix(".sessions")) for name in files) == ["../up", "100%", "a/b", "naïve 型"]


def test_the_file_holds_no_id(tmp_path: Path) -> None:
    """A copy of the file gives no session."""
    store = store_in(tmp_path)
    write(store, "the-id-of-somebody", b"the record of somebody")

    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"the record of somebody" in everything
    assert b"the-id-of" not in everything


def test_a_store_opens_nothing_before_a_call_leaves_one_file_and_opens_again(tmp_path: Path) -> None:
    store = store_in(tmp_path / "sessions")
    store.close()
    assert list(tmp_path.iterdir()) == []
    write(store, "a", b"record")
    store.close()

    assert list(files(tmp_path / "sessions")) == ["tagger.sessions"]
    assert read(store, "a") == b"record"


def test_a_deleted_file_is_made_anew(tmp_path: Path) -> None:
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


def test_restored_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    """They were copied with another mode; the log holds states and replies too."""
    store = store_in(tmp_path)
    write(store, "a", b"secret")
    copies = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    store.close()
    for name, content in copies.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o644)

    assert read(store_in(tmp_path), "a") == b"secret"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 50_000, b"no database " * 5000, b"SQLite format 3\x00" + b"\xff" * 20_000]
)
def test_garbage_in_its_place_is_told_and_not_overwritten(tmp_path: Path, garbage: bytes) -> None:
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
    store = store_in(tmp_path)
    for statement in ("PRAGMA user_version = 7", "CREATE TABLE something (x)"):
        connection = sqlite3.connect(store.file)
        connection.execute(statement)
        connection.close()
        before = store.file.read_bytes()
        with pytest.raises(StoreUnavailableError, match="was written by another version of this software; move it"):
            store.read(["a"])
        assert store.file.read_bytes() == before
        store.file.unlink()


def test_a_file_in_the_folders_place_and_a_name_that_no_file_can_have_are_told(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("")
    store = store_in(tmp_path / "sessions")
    with pytest.raises(StoreUnavailableError, match="the server must be able to write to it and to its folder"):
        store.read(["a"])
    (tmp_path / "sessions").unlink()
    with pytest.raises(StoreUnavailableError, match="File name too long"):
        SqliteStore(tmp_path, "x" * 300, LIMITS).read(["a"])

    write(store, "a", b"record")


def test_a_folder_that_cannot_be_written_to_is_told() -> None:
    # not below tmp_path, which other users cannot enter
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with writer(Path(directory) / "sessions", "read-only") as process:
            assert process.stdout is not None
            lines = process.stdout.read().split("\n")
            assert process.wait(60) == 0

    assert "the server must be able to write to it and to its folder" in lines[0]
    assert lines[1:] == ["written", ""]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "the server must be able to write"),
        (OSError(errno.EIO, "Input/output error"), "look for errors of its disk"),
        (OSError(errno.ENOSPC, "No space left on device"), "make room on its disk"),
        (sqlite3.OperationalError("database is locked"), "another process has held it for 5 seconds"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "the server must be able to write"),
        (sqlite3.OperationalError("disk I/O error"), "look for errors of its disk"),
        (sqlite3.DatabaseError("database disk image is malformed"), "move it away"),
    ],
    ids=str,
)
def test_no_word_of_the_path_is_taken_for_the_cause(error: Exception, advice: str, tmp_path: Path) -> None:
    """Errors of the system name the file."""
    file = tmp_path / "locked malformed readonly database or disk is full" / "tagger.sessions"
    file.parent.mkdir()
    if isinstance(error, OSError):
        error.filename = str(file)

    assert advice in str(store_error(file, error, 5.0))
