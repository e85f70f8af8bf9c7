"""Store of one model's sessions on Redis or Valkey, shared by all workers of several hosts.

It lies on one server, or is spread over the shards of a cluster.

Each call is one atomic step of the server; on a cluster, one of each partition. The durability of records depends on
the server's configuration: `appendonly yes` with `appendfsync always` survives a crash of its process, replicas that
confirm each write survive one of its host. With `appendfsync everysec` a server that is killed may lose the last two
seconds, since it delays writes while its disk is busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, Optional, TypeVar, Union
from urllib.parse import quote

from ..session import store_key
from ..settings import PARTITIONS, Limits, RedisSettings
from ..store import Conflict, RecordUpdate, StoredRecord, StoreTotals, StoreUnavailableError, WriteOutcome
from ..store_time import Reading
from .connections import Answer, RedisConnections
from .node import NO_REPLY
from .shard_commands import (
    Command,
    PartitionWrite,
    RedisPartition,
    hash_slot,
    partition_limits,
    partition_of,
    partition_tags,
)

_T = TypeVar("_T")


class RedisStore:
    """Store of `model` on a server or a cluster; implements `sessions.store.Store`.

    A `clock` can replace the server's clock and the monotonic clock of this host. The first call connects, and so does
    the next call after an error.

    Where a `StoreUnavailableError` says that the server closed the connection or did not respond, or that a reply was
    lost, a change may have been made. Its client got no response, and can repeat the request.
    """

    def __init__(
        self, settings: RedisSettings, model: str, limits: Limits, clock: Optional[Callable[[], Reading]] = None
    ) -> None:
        self._settings = settings
        self.model = model
        self._lock = Lock()
        # The braces put all keys of a partition on one server of a cluster.
        tags = partition_tags(model) if settings.cluster else [quote(model, safe="")]
        self.partitions = len(tags)
        """The number of partitions, each with its share of the limits."""
        own = partition_limits(limits) if settings.cluster else limits
        extent = f" in one of {PARTITIONS} partitions" if settings.cluster else ""
        self._partitions = [RedisPartition(f"neuron-lstm:{{{tag}}}:", model, own, clock, extent) for tag in tags]
        self._connections = RedisConnections(settings, [*map(hash_slot, tags)])

    def read(
        self, ids: Sequence[str], known: Optional[Mapping[str, int]] = None
    ) -> list[Union[StoredRecord, StoreUnavailableError, None]]:
        """Return the record of each session, in order; on a cluster, the error of a shard that cannot be used."""
        if not ids:
            return []
        members, places = self._places(ids)
        requests = {
            partition: self._partitions[partition].read([members[index] for index in indices])
            for partition, indices in places.items()
        }
        with self._lock:
            answers = self._ask(requests)
            found = {
                partition: self._read(self._partitions[partition].records, answer, len(places[partition]))
                for partition, answer in answers.items()
            }
        return _in_order(len(ids), places, found)

    def write(self, changes: Sequence[RecordUpdate]) -> list[Union[WriteOutcome, StoreUnavailableError]]:
        """Make each change separately. The ids of one call are different.

        On a cluster, the outcome is an error for each change whose shard cannot be used. So it is, on any server, for
        a change whose reply was lost if another worker has written the session since: it may have been made before.
        Without a change, every partition is asked, and one that answers is enough.

        Raises `StoreUnavailableError`: no change was made, as far as can be known.
        """
        members, places = self._places([change.id for change in changes])
        with self._lock:
            swept = [one for one, partition in enumerate(self._partitions) if not changes or partition.sweep_is_due]
            skip_if_down = frozenset(swept).difference(places) if changes else frozenset()
            places.update((partition, []) for partition in swept if partition not in places)
            writes = {
                partition: self._partitions[partition].write(
                    [members[index] for index in indices], [changes[index] for index in indices]
                )
                for partition, indices in places.items()
            }
            requests = {partition: [written.command] for partition, written in writes.items()}
            answers = self._ask(requests, self._settings.replicas, skip_if_down)
            outcomes = {
                partition: self._outcomes(partition, written, answers[partition], len(places[partition]))
                for partition, written in writes.items()
            }
        return _in_order(len(changes), places, outcomes)

    def totals(self) -> StoreTotals:
        """Count open sessions and bytes.

        Raises `StoreUnavailableError`: nothing can be read, or one shard cannot: the sum would be wrong.
        """
        with self._lock:
            answers = self._ask({one: [partition.count()] for one, partition in enumerate(self._partitions)})
        found: list[StoreTotals] = []
        for partition, answer in answers.items():
            read = self._read(self._partitions[partition].totals, answer, 1)
            if isinstance(read, StoreUnavailableError):
                raise read
            found += read
        waiting = [one.oldest_seconds for one in found if one.oldest_seconds is not None]
        return StoreTotals(
            sum(one.sessions for one in found), sum(one.bytes for one in found), max(waiting, default=None)
        )

    def expired(self) -> int:
        """Return the number of idle sessions that this object has removed since the last call."""
        with self._lock:
            return sum(partition.expired() for partition in self._partitions)

    def close(self) -> None:
        """Close the connections; the next call connects again."""
        with self._lock:
            self._connections.close()

    def _places(self, ids: Sequence[str]) -> tuple[list[str], dict[int, list[int]]]:
        """Return the keys of sessions, and the indices of those of each partition."""
        keys = [store_key(id, self.model) for id in ids]  # noqa: A001 - the standard term
        places: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            places.setdefault(partition_of(key) if self.partitions > 1 else 0, []).append(index)
        return [key.hex() for key in keys], places

    def _ask(
        self, requests: Mapping[int, Sequence[Command]], replicas: int = 0, skip_if_down: frozenset[int] = frozenset()
    ) -> dict[int, Answer]:
        answers = self._connections.ask(requests, replicas, skip_if_down)
        wanted = [answer for partition, answer in answers.items() if partition not in skip_if_down]
        errors = [answer for answer in wanted if isinstance(answer, StoreUnavailableError)]
        if errors and len(errors) == len(wanted):
            raise errors[0]
        return answers

    def _outcomes(
        self, partition: int, written: PartitionWrite, answer: Answer, count: int
    ) -> Union[Sequence[Union[WriteOutcome, StoreUnavailableError]], StoreUnavailableError]:
        if isinstance(answer, StoreUnavailableError):
            self._partitions[partition].put_off_sweep(written)
            return answer
        outcomes = partial(self._partitions[partition].outcomes, written)
        found = self._read(lambda replies: outcomes(*replies), answer, count)
        if isinstance(found, StoreUnavailableError) or partition not in self._connections.repeated:
            return found
        # The other worker's write may be based on this change: its caller must not make it once more.
        unknown = StoreUnavailableError(
            f"the session store {self._settings.server} cannot tell whether a change was made: the reply to a change "
            f"was lost, and another worker has written the session since"
        )
        return [unknown if isinstance(one, Conflict) else one for one in found]

    def _read(
        self, read: Callable[[list[Any]], Sequence[_T]], answer: Answer, count: int
    ) -> Union[Sequence[_T], StoreUnavailableError]:
        """Return the `count` values in the answer of a partition, or its error, or that of replies of another form."""
        if isinstance(answer, StoreUnavailableError):
            return answer
        try:
            found = read(answer)
        except NO_REPLY as error:
            return self._no_reply(error)
        return found if len(found) == count else self._no_reply(None)

    def _no_reply(self, cause: Optional[Exception]) -> StoreUnavailableError:
        self._connections.close()  # the next reply might be to another command
        error = StoreUnavailableError(
            f"the session store {self._settings.server} does not reply as a Redis server with this store's scripts "
            f"does: check that its address is that of the server"
        )
        error.__cause__ = cause
        return error


def _in_order(
    count: int, places: Mapping[int, Sequence[int]], found: Mapping[int, Union[Sequence[_T], StoreUnavailableError]]
) -> list[Union[_T, StoreUnavailableError]]:
    """Return what was found for each session in the order of the call, with the error of its partition instead."""
    ordered: dict[int, Union[_T, StoreUnavailableError]] = {}
    for partition, indices in places.items():
        part = found[partition]
        ordered.update(
            dict.fromkeys(indices, part) if isinstance(part, StoreUnavailableError) else dict(zip(indices, part))
        )
    return [ordered[index] for index in range(count)]
