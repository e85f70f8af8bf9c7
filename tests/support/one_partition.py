"""One partition of a store on a cluster, for which the properties of a store on one server hold."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count

from torchserve_neuron_lstm.sessions import store as interface
from torchserve_neuron_lstm.sessions.redis.shard_commands import partition_of
from torchserve_neuron_lstm.sessions.session import store_key
from torchserve_neuron_lstm.sessions.settings import PARTITIONS
from torchserve_neuron_lstm.sessions.store import LimitExceeded, Store, StoreUnavailableError, WriteOutcome

EXTENT = f" in one of {PARTITIONS} partitions"
"""The addition to the name of a limit that one partition has reached."""


class InOnePartition:
    """A store that gives each session another id, one of the first partition."""

    def __init__(self, store: Store, model: str) -> None:
        self._store = store
        self.model = model

    def read(
        self, ids: Sequence[str], known: Mapping[str, int] | None = None
    ) -> Sequence[interface.StoredRecord | StoreUnavailableError | None]:
        return self._store.read([id_in_partition(name, self.model) for name in ids])

    def write(self, changes: Sequence[interface.RecordUpdate]) -> list[WriteOutcome | StoreUnavailableError]:
        there = [change._replace(id=id_in_partition(change.id, self.model)) for change in changes]
        return [_of_one_server(outcome) for outcome in self._store.write(there)]

    def totals(self) -> interface.StoreTotals:
        return self._store.totals()

    def expired(self) -> int:
        return self._store.expired()

    def close(self) -> None:
        self._store.close()


@cache
def id_in_partition(name: str, model: str, partition: int = 0) -> str:
    """Return an id of a partition that begins with `name`, the same every time."""
    ids = (f"{name}~{number}" for number in count())
    return next(one for one in ids if partition_of(store_key(one, model)) == partition)


def _of_one_server(outcome: WriteOutcome | StoreUnavailableError) -> WriteOutcome | StoreUnavailableError:
    if isinstance(outcome, LimitExceeded):
        assert outcome.limit.endswith(EXTENT)
        return LimitExceeded(outcome.limit.removesuffix(EXTENT), outcome.retry_after)
    return outcome
