"""Store of one model's sessions on a Redis or Valkey server, shared by all workers of several hosts.

Each call is one atomic step of the server. The durability of records depends on the server's configuration: `appendonly
yes` with `appendfsync always` survives a crash of its process, replicas that confirm each write survive one of its
host. With `appendfsync everysec` a server that is killed may lose the last two seconds, since it delays writes while
its disk is busy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from secrets import token_bytes
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .ids import client_key, store_key
from .redis_client import connect, store_error
from .redis_scripts import (
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
from .settings import Limits, RedisSettings
from .store import (
    Conflict,
    LimitExceeded,
    RecordUpdate,
    StoredRecord,
    StoreTotals,
    StoreUnavailableError,
    WriteOutcome,
    Written,
    byte_limit,
    client_limit,
    session_limit,
    unconfirmed_limit,
)
from .store_time import Reading, SeenTime, StoredTime, current_time, estimate

if TYPE_CHECKING:
    from redis import Redis

_log = logging.getLogger(__name__)
_SWEPT_ROWS = 200
"""Records removed at a time; other clients wait meanwhile."""
_SWEEP_SECONDS = 5.0
"""Interval between two removals of expired records."""


class RedisStore:
    """Store of `model` on a server; implements `sessions.store.Store`.

    The clock that all hosts share is the server's; a `clock` can replace it and the steady clock of this host. The
    first call connects, and so does the next call after an error.

    Where a `StoreUnavailableError` says that the server closed the connection or did not respond, a change may have
    been made. Its client got no response, and can repeat the request.
    """

    def __init__(
        self, settings: RedisSettings, model: str, limits: Limits, clock: Callable[[], Reading] | None = None
    ) -> None:
        self._settings = settings
        self._model = model
        self._limits = limits
        self._clock = clock
        # The braces put all keys of one model on one server of a cluster.
        self._prefix = f"neuron-lstm:{{{quote(model, safe='')}}}:"
        self._lock = Lock()
        self._client: Redis | None = None
        self._seen: SeenTime | None = None
        self._swept: float | None = None
        self._expired = 0

    def read(self, ids: Sequence[str]) -> list[StoredRecord | None]:
        """Return the record of each session, in order; None where there is none.

        Raises:
            StoreUnavailableError: nothing can be read.
        """
        if not ids:
            return []
        keys = [self._record(member) for member in self._members(ids)]
        values, kept, (seconds, microseconds) = self._ask(
            lambda client: _values_and_time(client, keys, self._name("sizes"))
        )
        shared = float(int(seconds) * 1000 + int(microseconds) // 1000) if self._clock is None else self._clock().shared
        now = self._look(kept, shared if self._clock is None else 1000 * shared)
        return [None if value is None else self._found(value, now) for value in values]

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Make each change on its own. The ids of one call are different.

        Raises:
            StoreUnavailableError: no change was made, as far as can be known.
        """
        own = self._own()
        sweeps = self._swept is None or abs(own - self._swept) >= 1000 * _SWEEP_SECONDS
        members = self._members([change.id for change in changes])
        counted = ("open", "unconfirmed", "ended", "sizes", "clients")
        keys = [*map(self._name, counted), *map(self._record, members)]
        arguments: list[Any] = [*self._clocks(own), *self._limit_arguments(), int(sweeps), self._record("")]
        for member, change in zip(members, changes):
            expected = b"" if change.revision is None else change.revision.to_bytes(8, "big")
            client = "" if change.client is None else client_key(change.client, self._model).hex()
            # The new revision is unique, and the same when the call has to be repeated.
            arguments += (member, expected, token_bytes(8), int(change.ended), int(change.unconfirmed), client)
            arguments.append(change.record)
        expired, now, *answers = self._ask(lambda client: _write(client, self._settings, keys, arguments))
        self._seen = SeenTime(now, own)
        self._expired += expired
        self._swept = own if sweeps else self._swept
        return [
            self._outcome(code, wait, limit) for code, wait, limit in zip(answers[::3], answers[1::3], answers[2::3])
        ]

    def totals(self) -> StoreTotals:
        """Count open sessions and bytes.

        Raises:
            StoreUnavailableError: nothing can be read.
        """
        keys = [*map(self._name, ("open", "unconfirmed", "sizes"))]
        arguments = [*self._clocks(self._own()), *self._lifetimes()[:2]]
        sessions, size, oldest = self._ask(lambda client: client.register_script(TOTALS)(keys, arguments))
        return StoreTotals(sessions, size, None if oldest < 0 else oldest / 1000)

    def expired(self) -> int:
        """Return the number of idle sessions that this object has removed since the last call."""
        expired, self._expired = self._expired, 0
        return expired

    def close(self) -> None:
        """Close the connection; the next call connects again."""
        with self._lock:
            self._disconnect()

    def _ask(self, ask: Callable[[Redis], Any]) -> Any:
        # A command is repeated once if the connection was closed since its last use.
        with self._lock:
            known = self._client is not None
            if self._client is None:
                self._client = connect(self._settings)
            from redis import exceptions

            try:
                try:
                    if not known:
                        _warn_of_eviction(self._client, self._settings)
                    return ask(self._client)
                except exceptions.ConnectionError:
                    return ask(self._client)
            except (exceptions.RedisError, OSError) as error:
                self._disconnect()
                raise store_error(self._settings, error) from error

    def _disconnect(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.close()

    def _members(self, ids: Sequence[str]) -> list[str]:
        return [store_key(id, self._model).hex() for id in ids]  # noqa: A001 - the standard term

    def _name(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _record(self, member: str) -> str:
        return f"{self._prefix}record:{member}"

    def _own(self) -> float:
        # This host's own clock in milliseconds.
        return 1000 * (monotonic() if self._clock is None else self._clock().own)

    def _clocks(self, own: float) -> tuple[str | int, str | int]:
        # Milliseconds: the shared clock, empty for the server's, and the store's time by this host's own clock.
        by_own = estimate(self._seen, own)
        shared = "" if self._clock is None else int(self._clock().shared * 1000)
        return shared, "" if by_own is None else int(by_own)

    def _lifetimes(self) -> tuple[int, int, int]:
        limits = self._limits
        return int(limits.idle_seconds * 1000), int(limits.lifetime * 1000), int(limits.retry_seconds * 1000)

    def _limit_arguments(self) -> tuple[str | int, ...]:
        limits = self._limits
        sessions = limits.sessions, limits.unconfirmed, "" if limits.client_sessions is None else limits.client_sessions
        sizes = limits.bytes, limits.common_bytes, limits.unconfirmed_bytes, limits.own_bytes
        return *self._lifetimes(), *sessions, *sizes, _SWEPT_ROWS

    def _look(self, kept: bytes | None, shared: float) -> float:
        time, then_shared = (shared, shared) if kept is None else map(float, kept.split())
        reading = Reading(shared, self._own())
        now = current_time(StoredTime(time, then_shared), self._seen, reading)
        self._seen = SeenTime(now, reading.own)
        return now

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
        limits = self._limits
        names = {
            BEYOND_SESSIONS: session_limit(limits),
            BEYOND_UNCONFIRMED: unconfirmed_limit(limits),
            BEYOND_CLIENT: client_limit(limits),
            BEYOND_BYTES: byte_limit(limit),
        }
        return LimitExceeded(names[code], wait_milliseconds / 1000)


def _values_and_time(client: Redis, keys: list[str], sizes: str) -> list[Any]:
    pipeline: Any = client.pipeline(transaction=False)
    answer: list[Any] = pipeline.mget(keys).hget(sizes, "clock").time().execute()
    return answer


def _write(client: Redis, settings: RedisSettings, keys: list[str], arguments: list[Any]) -> Any:
    answer = client.register_script(WRITE)(keys, arguments)
    if settings.replicas:
        # Less than the time limit of the connection: the answer is the number of replicas, also if it is too small.
        have: Any = client.wait(settings.replicas, max(1, int(800 * settings.timeout_seconds)))
        if have < settings.replicas:
            raise StoreUnavailableError(
                f"the session store {settings.address} has {have} replicas that are up to date, and replicas: "
                f"{settings.replicas} are expected; a change may be lost in a failover"
            )
    return answer


def _warn_of_eviction(client: Redis, settings: RedisSettings) -> None:
    # A server that evicts keys when its memory is full ends sessions without an error.
    from redis import exceptions

    try:
        memory: Any = client.info("memory")
    except exceptions.ResponseError:
        return  # the user may lack the right
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and memory.get("maxmemory"):
        _log.warning(
            "the session store %s has maxmemory-policy %s: it removes open sessions when its memory is full; "
            "set it to noeviction, and new sessions are refused instead",
            settings.address,
            policy,
        )
