"""Calls of a session store that many tests make."""

from collections.abc import Sequence

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import RecordUpdate, Store, StoredRecord, StoreUnavailableError, Written

WIDE = Limits(sessions=1000, bytes=1_000_000, idle_seconds=900.0, retry_seconds=60.0)


def begin(store: Store, *names: str, record: bytes = b"record", ended: bool = False) -> None:
    assert store.write([RecordUpdate(name, record, None, ended) for name in names]) == [Written()] * len(names)


def revision(store: Store, name: str) -> int:
    found = stored(store, name)
    assert found is not None
    return found.revision


def stored(store: Store, name: str) -> StoredRecord | None:
    """The record of a session whose server can be read."""
    (found,) = answered(store.read([name]))
    return found


def write(store: Store, name: str, record: bytes) -> None:
    """Write a record in the place of the stored one."""
    found = stored(store, name)
    assert store.write([RecordUpdate(name, record, found and found.revision)]) == [Written()]


def read(store: Store, name: str) -> bytes | None:
    return records(store.read([name]))[0]


def answered(found: Sequence[StoredRecord | StoreUnavailableError | None]) -> list[StoredRecord | None]:
    """Raise the error of a session whose server cannot be read."""
    without_errors: list[StoredRecord | None] = []
    for one in found:
        if isinstance(one, StoreUnavailableError):
            raise one
        without_errors.append(one)
    return without_errors


def records(found: Sequence[StoredRecord | StoreUnavailableError | None]) -> list[bytes | None]:
    """The records that were found, without their revisions, which belong to the store."""
    return [one and one.record for one in answered(found)]
