"""Makers of Redis servers and of stores on them, for one test; on a cluster, a session in each partition."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from memory_store import Clock
from one_partition import id_in_partition
from redis_cluster import LocalCluster
from redis_server import RedisServer
from store_calls import stored

from torchserve_neuron_lstm.sessions.redis.shard_commands import hash_slot, partition_tags
from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.settings import PARTITIONS, Limits, RedisSettings
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreUnavailableError

LIMITS = Limits(sessions=16_000, bytes=100_000_000, idle_seconds=900.0)
NAMES = [id_in_partition("session", "tagger", partition) for partition in range(PARTITIONS)]
"""A session of each partition."""
TAGS = partition_tags("tagger")
_COMMANDS = "get mget set del getrange pttl pexpire zadd zrem zcard zcount zscore zrange zrangebyscore hget hset hdel"
RIGHTS = [f"+{command}" for command in f"{_COMMANDS} hincrby time evalsha script|load select".split()]
"""The commands that a user of a store needs."""
MakeStore = Callable[..., RedisStore]
"""A function that makes a store for an address: `make(url, clock=None, limits=..., **settings)`."""
StartServer = Callable[..., RedisServer]
"""A function that starts a server with some options."""


@contextmanager
def made_stores(usual_limits: Limits, **usual: Any) -> Iterator[MakeStore]:
    with ExitStack() as opened:

        def make(url: str, clock: Clock | None = None, limits: Limits = usual_limits, **settings: Any) -> RedisStore:
            given = {"timeout_seconds": 30.0} | usual | settings  # a busy machine is slow now and then
            store = RedisStore(RedisSettings(url, **given), "tagger", limits, clock)
            opened.callback(store.close)
            return store

        yield make


def write(store: RedisStore, record: bytes, names: Sequence[str] = NAMES) -> list[object]:
    found = [stored(store, name) for name in names]
    changes = [RecordUpdate(name, record, one and one.revision) for name, one in zip(names, found, strict=True)]
    return [*store.write(changes)]


def errors(found: Sequence[object]) -> list[int]:
    """The partitions whose session has an error."""
    return [number for number, one in enumerate(found) if isinstance(one, StoreUnavailableError)]


def partitions_of(cluster: LocalCluster, server: RedisServer) -> list[int]:
    return [number for number, tag in enumerate(TAGS) if cluster.owner(hash_slot(tag)) is server]
