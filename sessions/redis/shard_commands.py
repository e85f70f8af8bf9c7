"""Commands and replies of one partition of a network store, and the partitions of a cluster.

A partition is sessions whose keys are under one prefix, on one server. The number of partitions of a cluster does not
depend on that of shards: a cluster that gets another shard moves whole partitions. Nothing here talks to a server.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha1
from itertools import count
from secrets import token_bytes
from time import monotonic
from typing import Any, NamedTuple, Optional, Union
from urllib.parse import quote

from ..admission import BYTES, OF_CLIENT, SESSIONS, UNCONFIRMED
from ..session import client_key
from ..settings import PARTITIONS, Limits
from ..store import Conflict, LimitExceeded, RecordUpdate, StoredRecord, StoreTotals, WriteOutcome, Written
from ..store_time import LocalTime, Reading, StoredTime, current_time
from .scripts import (
    BEYOND_BYTES,
    BEYOND_CLIENT,
    BEYOND_SESSIONS,
    BEYOND_UNCONFIRMED,
    CONFLICT,
    RECORD_HEADER,
    TOTALS,
    WRITE,
    WRITTEN,
)

_SWEPT_ROWS = 200
"""Records removed in one call, during which other clients wait."""
_SWEEP_SECONDS = 5.0
"""Interval between two removals of expired records, unless more may have expired than were removed."""


_LIMITS = {BEYOND_SESSIONS: SESSIONS, BEYOND_UNCONFIRMED: UNCONFIRMED, BEYOND_CLIENT: OF_CLIENT, BEYOND_BYTES: BYTES}
"""Limits in words, by the code of an outcome."""

Command = tuple[Any, ...]
"""One command of a server; a script is called by its digest."""


class PartitionWrite(NamedTuple):
    """The command of a write, and the data to read its reply with."""

    command: Command
    local: float
    """Reading of the local clock, in milliseconds."""
    sweeps: bool


def call_script(script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Command:
    """Return the command that runs a script."""
    return ("EVALSHA", _digest(script), len(keys), *keys, *arguments)


@cache
def _digest(script: str) -> str:
    return sha1(script.encode()).hexdigest()  # noqa: S324 - the servers name scripts so


class RedisPartition:
    """One partition of the sessions of `model`, with keys that begin with `prefix`.

    It remembers the store's time at its last call, and the time of its last removal of expired records. A `clock` can
    replace the server's clock and the monotonic clock of this host. `extent` is added to the name of a limit that is
    reached.
    """

    def __init__(
        self, prefix: str, model: str, limits: Limits, clock: Optional[Callable[[], Reading]] = None, extent: str = ""
    ) -> None:
        self._prefix = prefix
        self._model = model
        self._limits = limits
        self._clock = clock
        self._extent = extent
        self._local_time: LocalTime | None = None
        self._swept: float | None = None
        self._expired = 0

    def read(self, members: Sequence[str]) -> list[Command]:
        """Return the commands that read the records of `members`."""
        return [("MGET", *map(self._record, members)), ("HGET", self._name("sizes"), "clock"), ("TIME",)]

    def records(self, replies: Sequence[Any]) -> list[StoredRecord | None]:
        """Return the records from the replies to `read`, in order; None where there is none."""
        values, clock, (seconds, microseconds) = replies
        shared = int(seconds) * 1000 + int(microseconds) / 1000 if self._clock is None else 1000 * self._clock().shared
        now = self._read_time(clock, shared)
        return [None if value is None else self._found(value, now) for value in values]

    @property
    def sweep_is_due(self) -> bool:
        """Whether the next write removes expired records."""
        return self._swept is None or abs(self._local() - self._swept) >= 1000 * _SWEEP_SECONDS

    def write(self, members: Sequence[str], changes: Sequence[RecordUpdate]) -> PartitionWrite:
        """Return the command that makes each change, in order; `members` are their keys.

        It can be repeated as it is: a change that was made already is not made again.
        """
        local, sweeps = self._local(), self.sweep_is_due
        counted = ("open", "unconfirmed", "ended", "sizes", "clients")
        keys = [*map(self._name, counted), *map(self._record, members)]
        estimate = "" if self._local_time is None else self._local_time.at(local)
        arguments: list[Any] = [self._server_time(), estimate, *self._limit_arguments()]
        arguments += (int(sweeps), self._record(""))
        for member, change in zip(members, changes):
            expected = b"" if change.revision is None else change.revision.to_bytes(8, "big")
            client = "" if change.client is None else client_key(change.client, self._model).hex()
            # The new revision is unique, and the same when the call has to be repeated.
            arguments += (member, expected, token_bytes(8), int(change.ended), int(change.unconfirmed), client)
            arguments.append(change.record)
        return PartitionWrite(call_script(WRITE, keys, arguments), local, sweeps)

    def outcomes(self, written: PartitionWrite, reply: Sequence[Any]) -> list[WriteOutcome]:
        """Return the outcome of each change from the reply to a write."""
        expired, estimate, may_continue, *answers = reply
        # By the clock after the call: the time was read before that.
        local, time = self._local(), float(estimate)
        self._local_time = LocalTime(time if self._local_time is None else max(time, self._local_time.at(local)), local)
        self._expired += expired
        if written.sweeps:
            self._swept = None if may_continue else written.local
        return [
            self._outcome(code, wait, limit) for code, wait, limit in zip(answers[::3], answers[1::3], answers[2::3])
        ]

    def put_off_sweep(self, written: PartitionWrite) -> None:
        """Postpone the removal of expired records by one interval: the server did not answer."""
        self._swept = written.local if written.sweeps else self._swept

    def count(self) -> Command:
        """Return the command that counts open sessions and bytes."""
        keys = [*map(self._name, ("open", "unconfirmed", "sizes"))]
        return call_script(TOTALS, keys, [self._server_time(), *self._lifetimes()[:2]])

    def totals(self, replies: Sequence[Any]) -> list[StoreTotals]:
        """Return the totals, one, from the replies to `count`."""
        ((sessions, size, oldest),) = replies
        return [StoreTotals(sessions, size, None if oldest < 0 else oldest / 1000)]

    def expired(self) -> int:
        """Return the number of idle sessions that were removed since the last call."""
        expired, self._expired = self._expired, 0
        return expired

    def _name(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _record(self, member: str) -> str:
        return f"{self._prefix}record:{member}"

    def _local(self) -> float:
        # The local clock in milliseconds.
        return 1000 * (monotonic() if self._clock is None else self._clock().local)

    def _server_time(self) -> Union[str, float]:
        # Milliseconds of the shared clock; empty for the server's.
        return "" if self._clock is None else 1000 * self._clock().shared

    def _lifetimes(self) -> tuple[int, int, int]:
        limits = self._limits
        return int(limits.idle_seconds * 1000), int(limits.lifetime * 1000), int(limits.retry_seconds * 1000)

    def _limit_arguments(self) -> tuple[Union[str, int], ...]:
        limits = self._limits
        sessions = limits.sessions, limits.unconfirmed, "" if limits.client_sessions is None else limits.client_sessions
        sizes = limits.bytes, limits.common_bytes, limits.unconfirmed_bytes, limits.own_bytes
        return *self._lifetimes(), *sessions, *sizes, _SWEPT_ROWS

    def _read_time(self, clock: bytes | None, shared: float) -> float:
        stored = StoredTime(shared, shared) if clock is None else StoredTime(*map(float, clock.split()))
        now = Reading(shared, self._local())
        self._local_time = self._local_time and self._local_time.synchronized(stored, now.local)
        return current_time(stored, self._local_time, now).time

    def _found(self, value: bytes, now: float) -> StoredRecord | None:
        if len(value) < RECORD_HEADER.size:  # not a record of this store
            return None
        revision, ended, last = RECORD_HEADER.unpack_from(value)
        if last < now - 1000 * (self._limits.retry_seconds if ended else self._limits.idle_seconds):
            return None
        return StoredRecord(value[RECORD_HEADER.size :], revision)

    def _outcome(self, code: int, wait_milliseconds: int, limit: int) -> WriteOutcome:
        if code == WRITTEN:
            return Written()
        if code == CONFLICT:
            return Conflict()
        return LimitExceeded(f"{_LIMITS[code].format(limit)}{self._extent}", wait_milliseconds / 1000)


SLOTS = 16384
"""Hash slots of a cluster; a shard has a range of them."""


def partition_of(key: bytes) -> int:
    """Return the partition of the session with this store key: every one is equally likely."""
    return key[0] % PARTITIONS


def hash_slot(tag: str) -> int:
    """Return the hash slot of the keys with this tag: CRC16 (XMODEM), as the servers compute it.

    >>> hash_slot("123456789")
    12739
    """
    return crc_hqx(tag.encode(), 0) % SLOTS


def partition_tags(model: str) -> list[str]:
    """Return the hash tag of each partition.

    The slot of partition i is in the i-th sixteenth of all slots. So shards with equal ranges of slots get equal
    numbers of partitions.

    >>> [hash_slot(tag) // (SLOTS // PARTITIONS) for tag in partition_tags("tagger")] == list(range(PARTITIONS))
    True
    """
    name = quote(model, safe="")
    tags: dict[int, str] = {}
    for suffix in count():
        tag = f"{name}:{suffix}"
        tags.setdefault(hash_slot(tag) * PARTITIONS // SLOTS, tag)
        if len(tags) == PARTITIONS:
            break
    return [tags[partition] for partition in range(PARTITIONS)]


def partition_limits(limits: Limits) -> Limits:
    """Return the limits of one partition: its share of sessions and bytes.

    All partitions together never have more than the limits. A client's share of sessions is rounded up: one that may
    have less than one in each partition can still start.

    >>> partition_limits(Limits(sessions=10_000, bytes=2**30, idle_seconds=600, client_sessions=100))
    Limits(sessions=625, bytes=67108864, idle_seconds=600, retry_seconds=60.0, confirm_seconds=60.0, client_sessions=7)
    """
    of_client = limits.client_sessions
    return replace(
        limits,
        sessions=limits.sessions // PARTITIONS,
        bytes=limits.bytes // PARTITIONS,
        client_sessions=None if of_client is None else -(-of_client // PARTITIONS),
    )
