"""In-memory session store, written from the protocol: a reference for stores, a fake for handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import (
    Conflict,
    LimitExceeded,
    RecordUpdate,
    StoredRecord,
    StoreTotals,
    WriteOutcome,
    Written,
)

_REVISIONS = count(1)


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class _Entry:
    record: bytes
    revision: int
    ended: bool
    last: float


@dataclass
class MemoryStore:
    """A store in memory. Every call removes expired records."""

    limits: Limits
    clock: Callable[[], float]
    entries: dict[str, _Entry] = field(default_factory=dict)
    removed: int = 0

    def read(self, ids: Sequence[str]) -> list[StoredRecord | None]:
        """Read records, as `Store.read`."""
        self._remove_expired()
        entries = [self.entries.get(name) for name in ids]
        return [None if entry is None else StoredRecord(entry.record, entry.revision) for entry in entries]

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Write records, as `Store.write`."""
        self._remove_expired()
        return [self._write(change) for change in changes]

    def totals(self) -> StoreTotals:
        """Count records, as `Store.totals`."""
        self._remove_expired()
        waiting = [max(0.0, self.clock() - entry.last) for entry in self._open()]
        size = sum(len(entry.record) for entry in self.entries.values())
        return StoreTotals(len(waiting), size, max(waiting, default=None))

    def expired(self) -> int:
        """Count expired records, as `Store.expired`."""
        removed, self.removed = self.removed, 0
        return removed

    def _write(self, change: RecordUpdate) -> WriteOutcome:
        old = self.entries.get(change.id)
        goes_on = old is not None and not old.ended
        if old is None and change.revision is not None:
            return Conflict()
        if old is not None and change.revision != old.revision and (goes_on or change.revision is not None):
            return Conflict()
        others = sum(len(entry.record) for name, entry in self.entries.items() if name != change.id)
        if not goes_on:
            if not change.ended and len(self._open()) >= self.limits.sessions:
                return LimitExceeded(f"{self.limits.sessions} sessions", self._until_room())
            if others + len(change.record) > self.limits.bytes:
                return LimitExceeded(f"{self.limits.bytes} bytes", self._until_room())
        self.entries[change.id] = _Entry(change.record, next(_REVISIONS), change.ended, self.clock())
        return Written()

    def _open(self) -> list[_Entry]:
        return [entry for entry in self.entries.values() if not entry.ended]

    def _until_room(self) -> float:
        return (
            min((entry.last for entry in self._open()), default=self.clock()) + self.limits.idle_seconds - self.clock()
        )

    def _remove_expired(self) -> None:
        for name, entry in list(self.entries.items()):
            seconds = self.limits.retry_seconds if entry.ended else self.limits.idle_seconds
            if entry.last < self.clock() - seconds:
                del self.entries[name]
                self.removed += not entry.ended
