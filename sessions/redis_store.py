"""Store of one model's sessions on a Redis or Valkey server, shared by all workers of several hosts.

Each call is one atomic step of the server. The durability of records depends on the server's configuration: `appendonly
yes` with `appendfsync always` survives a crash of its process, replicas survive one of its host. With `appendfsync
everysec` a server that is killed may lose the last two seconds, since it delays writes while its disk is busy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from secrets import token_bytes
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .ids import store_key
from .redis_client import connect, store_error
from .redis_scripts import CONFLICT, RECORD_HEADER, TOO_MANY_SESSIONS, TOTALS, WRITE, WRITTEN
from .settings import Limits, RedisSettings
from .store import Conflict, LimitExceeded, RecordUpdate, StoredRecord, StoreTotals, WriteOutcome, Written

if TYPE_CHECKING:
    from redis import Redis

_log = logging.getLogger(__name__)
_SWEPT_ROWS = 200
"""Records removed at a time; other clients wait meanwhile."""
_SWEEP_SECONDS = 5.0
"""Interval between two removals of expired records."""


class RedisStore:
    """Store of `model` on a server; implements `sessions.store.Store`.

    Time is that of the server, the only one that all hosts share; a `clock` that returns seconds can replace it. The
    first call connects, and so does the next call after an error.

    Where a `StoreUnavailableError` says that the server closed the connection or did not respond, a change may have
    been made. Its client got no response, and can repeat the request.
    """

    def __init__(
        self, settings: RedisSettings, model: str, limits: Limits, clock: Callable[[], float] | None = None
    ) -> None:
        self._settings = settings
        self._model = model
        self._limits = limits
        self._clock = clock
        # The braces put all keys of one model on one server of a cluster.
        self._prefix = f"neuron-lstm:{{{quote(model, safe='')}}}:"
        self._lock = Lock()
        self._client: Redis | None = None
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
        values, (seconds, microseconds) = self._ask(lambda client: _values_and_time(client, keys))
        now = seconds + microseconds / 1e6 if self._clock is None else self._clock()
        return [None if value is None else self._found(value, now) for value in values]

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        """Make each change on its own. The ids of one call are different.

        Raises:
            StoreUnavailableError: no change was made, as far as can be known.
        """
        started = (self._clock or monotonic)()
        sweeps = self._swept is None or abs(started - self._swept) >= _SWEEP_SECONDS
        members = self._members([change.id for change in changes])
        keys = [*map(self._name, ("open", "ended", "sizes")), *map(self._record, members)]
        arguments: list[Any] = [
            *self._times(), self._limits.sessions, self._limits.bytes, _SWEPT_ROWS, int(sweeps), self._record("")
        ]  # fmt: skip
        for member, change in zip(members, changes, strict=True):
            expected = b"" if change.revision is None else change.revision.to_bytes(8, "big")
            # The new revision is unique, and the same when the call has to be repeated.
            arguments += (member, expected, token_bytes(8), int(change.ended), change.record)
        expired, *answers = self._ask(lambda client: client.register_script(WRITE)(keys, arguments))
        self._expired += expired
        self._swept = started if sweeps else self._swept
        return [self._outcome(code, wait) for code, wait in zip(answers[::2], answers[1::2], strict=True)]

    def totals(self) -> StoreTotals:
        """Count open sessions and bytes.

        Raises:
            StoreUnavailableError: nothing can be read.
        """
        keys = [self._name("open"), self._name("sizes")]
        sessions, size, oldest = self._ask(lambda client: client.register_script(TOTALS)(keys, self._times()))
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

    def _times(self) -> tuple[str | int, int, int]:
        # Milliseconds: the current time, empty for the server's, and how long open and ended sessions are kept.
        now = "" if self._clock is None else int(self._clock() * 1000)
        return now, int(self._limits.idle_seconds * 1000), int(self._limits.retry_seconds * 1000)

    def _found(self, value: bytes, now: float) -> StoredRecord | None:
        if len(value) < RECORD_HEADER.size:  # not a record of this store
            return None
        revision, ended, last = RECORD_HEADER.unpack_from(value)
        if last / 1000 < now - (self._limits.retry_seconds if ended else self._limits.idle_seconds):
            return None
        return StoredRecord(value[RECORD_HEADER.size :], revision)

    def _outcome(self, code: int, wait_milliseconds: int) -> WriteOutcome:
        if code == WRITTEN:
            return Written()
        if code == CONFLICT:
            return Conflict()
        limit = f"{self._limits.sessions} sessions" if code == TOO_MANY_SESSIONS else f"{self._limits.bytes} bytes"
        return LimitExceeded(limit, wait_milliseconds / 1000)


def _values_and_time(client: Redis, keys: list[str]) -> list[Any]:
    pipeline: Any = client.pipeline(transaction=False)
    answer: list[Any] = pipeline.mget(keys).time().execute()
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
