"""In-memory session store, written from the protocol: a reference for stores, a fake for handlers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from torchserve_neuron_lstm.sessions import store
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import Conflict, RecordUpdate, StoredRecord, StoreTotals, WriteOutcome
from torchserve_neuron_lstm.sessions.store_time import Reading

_REVISIONS = count(1)


@dataclass
class Clock:
    """Clocks that a test sets: the time, and by how much each of the two is wrong."""

    now: float = 1_700_000_000.0
    shared_error: float = 0.0
    local_error: float = 0.0

    def __call__(self) -> Reading:
        return Reading(self.now + self.shared_error, self.now + self.local_error)


@dataclass
class _Entry:
    record: bytes
    revision: int
    ended: bool
    last: float
    unconfirmed: bool
    client: str | None


@dataclass
class MemoryStore:
    """A store in memory. Every call removes expired records."""

    limits: Limits
    clock: Clock
    entries: dict[str, _Entry] = field(default_factory=dict)
    removed: int = 0
    model: str = "model"

    def read(self, ids: Sequence[str], known: Mapping[str, int] | None = None) -> list[StoredRecord | None]:
        self._remove_expired()
        entries = [self.entries.get(name) for name in ids]
        found = [None if entry is None else StoredRecord(entry.record, entry.revision) for entry in entries]
        if known is None:
            return found
        return [
            one._replace(record=b"left out") if one is not None and one.revision == known.get(name) else one
            for name, one in zip(ids, found, strict=True)
        ]

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        self._remove_expired()
        return [self._write(change) for change in changes]

    def totals(self) -> StoreTotals:
        self._remove_expired()
        waiting = [max(0.0, self.clock.now - entry.last) for entry in self._open()]
        size = sum(len(entry.record) for entry in self.entries.values())
        return StoreTotals(len(waiting), size, max(waiting, default=None))

    def expired(self) -> int:
        removed, self.removed = self.removed, 0
        return removed

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _write(self, change: RecordUpdate) -> WriteOutcome:
        old = self.entries.get(change.id)
        goes_on = old is not None and not old.ended
        if old is None and change.revision is not None:
            return Conflict()
        if old is not None and change.revision != old.revision and (goes_on or change.revision is not None):
            return Conflict()
        if (beyond := self._beyond(change, old)) is not None:
            return store.LimitExceeded(beyond, self._until_room())
        client = old.client if old is not None and goes_on and change.client is None else change.client
        revision = next(_REVISIONS)
        self.entries[change.id] = _Entry(
            change.record, revision, change.ended, self.clock.now, change.unconfirmed, client
        )
        return store.Written(revision)

    def _beyond(self, change: RecordUpdate, old: _Entry | None) -> str | None:
        limits, goes_on = self.limits, old is not None and not old.ended
        others = [entry for name, entry in self.entries.items() if name != change.id]
        open_ = [entry for entry in others if not entry.ended]
        if not goes_on and not change.ended:
            if len(open_) >= limits.sessions:
                return f"{limits.sessions} sessions"
            if change.unconfirmed and sum(entry.unconfirmed for entry in open_) >= limits.unconfirmed:
                return f"{limits.unconfirmed} sessions that were started without an id and have had one request"
            same = sum(entry.client == change.client for entry in open_)
            if change.client is not None and limits.client_sessions is not None and same >= limits.client_sessions:
                return f"{limits.client_sessions} sessions of one client"
        before = sum(len(entry.record) for entry in self.entries.values())
        after = sum(len(entry.record) for entry in others) + len(change.record)
        most = limits.unconfirmed_bytes if change.unconfirmed else limits.common_bytes
        if goes_on and len(change.record) <= limits.own_bytes:
            most = limits.bytes
        return f"{most} bytes" if after > most and not (goes_on and after <= before) else None

    def _open(self) -> list[_Entry]:
        return [entry for entry in self.entries.values() if not entry.ended]

    def _until_room(self) -> float:
        return min(
            (self._expiry(entry) for entry in self._open()), default=self.clock.now + self.limits.idle_seconds
        ) - (self.clock.now)

    def _expiry(self, entry: _Entry) -> float:
        seconds = self.limits.lifetime if entry.unconfirmed else self.limits.idle_seconds
        return entry.last + (self.limits.retry_seconds if entry.ended else seconds)

    def _remove_expired(self) -> None:
        for name, entry in list(self.entries.items()):
            if self._expiry(entry) < self.clock.now:
                del self.entries[name]
                self.removed += not entry.ended
