"""The sessions of one model on a Redis or Valkey server, shared by all workers of several hosts.

Each call is one step of the server's, with nobody else's in between. What is written outlasts the server as its
configuration says: `appendonly yes` with `appendfsync always` for a crash of its process, replicas for one of its host.
With `appendfsync everysec` a server that is killed may have lost the last two seconds: it puts off what it writes while
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

from .ids import store_key
from .redis_client import connect, store_error
from .redis_scripts import CONFLICT, RECORD_HEADER, TOO_MANY_SESSIONS, TOTALS, WRITE, WRITTEN
from .settings import Limits, RedisSettings
from .store import Conflict, LimitExceeded, RecordUpdate, StoredRecord, StoreTotals, WriteOutcome, Written

if TYPE_CHECKING:
    from redis import Redis

_log = logging.getLogger(__name__)
_SWEPT_ROWS = 200
"""That are removed in one go: others wait meanwhile."""
_SWEEP_SECONDS = 5.0
"""Between two looks for what has lapsed."""


class RedisStore:
    """The store of `model` on a server, as `sessions.store.Store` promises.

    Time is the server's, the only one that all hosts share; a `clock` that gives seconds can take its place. Nothing is
    connected before the first call, and after an error the next call connects anew.

    Where a `StoreUnavailable` says that the server hung up or did not answer, a change may have been made after all.
    Nobody was told of it, as when an answer is lost on its way to the client: the piece can be sent again.
    """

    def __init__(
        self, settings: RedisSettings, model: str, limits: Limits, clock: Callable[[], float] | None = None
    ) -> None:
        self._settings = settings
        self._model = model
        self._limits = limits
        self._clock = clock
        # In braces, so that all keys of one model lie on one server, however many there are.
        self._prefix = f"neuron-lstm:{{{quote(model, safe='')}}}:"
        self._lock = Lock()
        self._client: Redis | None = None
        self._swept: float | None = None
        self._expired = 0

    def read(self, ids: Sequence[str]) -> list[StoredRecord | None]:
        """The record of each session, in order; None where there is none.

        Raises:
            StoreUnavailable: nothing can be read.
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
            StoreUnavailable: no change was made, as far as can be known.
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
            # The new revision is one that never was, and the same when the call has to be made a second time.
            arguments += (member, expected, token_bytes(8), int(change.ended), change.record)
        expired, *answers = self._ask(lambda client: client.register_script(WRITE)(keys, arguments))
        self._expired += expired
        self._swept = started if sweeps else self._swept
        return [self._outcome(code, wait) for code, wait in zip(answers[::2], answers[1::2], strict=True)]

    def totals(self) -> StoreTotals:
        """What there is.

        Raises:
            StoreUnavailable: nothing can be read.
        """
        keys = [self._name("open"), self._name("sizes")]
        sessions, size, oldest = self._ask(lambda client: client.register_script(TOTALS)(keys, self._times()))
        return StoreTotals(sessions, size, None if oldest < 0 else oldest / 1000)

    def expired(self) -> int:
        """How many sessions this object has removed since the last call because they were idle."""
        expired, self._expired = self._expired, 0
        return expired

    def close(self) -> None:
        """Hang up; the next call connects again."""
        with self._lock:
            self._disconnect()

    def _ask(self, ask: Callable[[Redis], Any]) -> Any:
        """What the server answers. It is asked a second time where the connection had been cut since its last use."""
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
        return [store_key(id, self._model).hex() for id in ids]  # noqa: A001 - what it is

    def _name(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _record(self, member: str) -> str:
        return f"{self._prefix}record:{member}"

    def _times(self) -> tuple[str | int, int, int]:
        """In milliseconds: now, if it is not the server's to say, and how long sessions are kept."""
        now = "" if self._clock is None else int(self._clock() * 1000)
        return now, int(self._limits.idle_seconds * 1000), int(self._limits.retry_seconds * 1000)

    def _found(self, value: bytes, now: float) -> StoredRecord | None:
        if len(value) < RECORD_HEADER.size:  # nothing of ours
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
    """A server that throws keys away when its memory is full ends sessions without a word."""
    from redis import exceptions

    try:
        memory: Any = client.info("memory")
    except exceptions.ResponseError:
        return  # it may be forbidden to ask
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and memory.get("maxmemory"):
        _log.warning(
            "the session store %s has maxmemory-policy %s: it removes open sessions when its memory is full; "
            "set it to noeviction, and new sessions are refused instead",
            settings.address,
            policy,
        )
