"""A process that writes sessions, for tests that kill it, limit it, or run several at once."""

import os
import resource
import signal
import sys
from pathlib import Path

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite import checkpoints
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreUnavailableError, Written

LIMITS = Limits(sessions=1000, bytes=100_000_000, idle_seconds=900.0)


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def rounds(store: SqliteStore, told: int) -> None:
    """Write eight sessions again and again, each with the number of the round in its record.

    A round is lost if the file is removed during it.
    """
    names = [f"{number}" for number in range(8)]
    say("ready")
    while True:
        told += 1
        found = store.read(names)
        record = b"%010d" % told + bytes(6000)
        changes = [RecordUpdate(name, record, one and one.revision) for name, one in zip(names, found, strict=True)]
        if store.write(changes) == [Written()] * 8:
            say(told)


def add(store: SqliteStore, times: int) -> None:
    for _ in range(times):
        outcome: object = None
        while outcome != Written():
            (found,) = store.read(["sum"])
            record = b"%d" % (int(found.record if found else b"0") + 1)
            (outcome,) = store.write([RecordUpdate("sum", record, found and found.revision)])


def limited(store: SqliteStore) -> None:
    """Write until no file can grow; then, with space again, once more."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    store.totals()
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    written = 0
    try:
        while True:
            store.write([RecordUpdate(f"{written}", bytes(6000), None)])
            written += 1
    except StoreUnavailableError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        say(f"StoreUnavailable: {error}")
    assert store.write([RecordUpdate(f"{written}", b"after", None)]) == [Written()]
    say(written)


def read_only(store: SqliteStore) -> None:
    """Write in a folder without write permission, and then with it."""
    folder = store.file.parent
    folder.mkdir(mode=0o500)
    if os.geteuid() == 0:  # root ignores permissions
        os.chown(folder, 65534, 65534)
        os.setegid(65534)
        os.seteuid(65534)
    try:
        store.read(["a"])
    except StoreUnavailableError as error:
        say(error)
    folder.chmod(0o700)
    store.write([RecordUpdate("a", b"record", None)])
    say("written")
    store.close()
    if os.getuid() == 0:
        os.seteuid(0)


def main() -> None:
    directory, action, *numbers = sys.argv[1:]
    store = SqliteStore(Path(directory), "tagger", LIMITS)
    if action == "rounds":
        rounds(store, int(numbers[0]))
    elif action == "checkpoints":  # rounds, each with a checkpoint beside the next one
        checkpoints._BYTES, checkpoints._LONG_LOG_PAGES = 1, 50
        rounds(store, int(numbers[0]))
    elif action == "add":
        add(store, int(numbers[0]))
    elif action == "limited":
        limited(store)
    else:
        read_only(store)


if __name__ == "__main__":
    main()
