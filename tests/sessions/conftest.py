"""Fixtures: the stores on which the protocol is tested, and clusters of Redis."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from memory_store import Clock, MemoryStore
from one_partition import InOnePartition
from redis_cluster import LocalCluster, running_cluster
from redis_server import RedisServer, one_and_others_long, running, server_programs
from store_calls import WIDE

from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.settings import PARTITIONS, Limits, RedisSettings
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore
from torchserve_neuron_lstm.sessions.store import Store

from .redis_stores import LIMITS, MakeStore, StartServer, made_stores

PROGRAMS = server_programs()


class Place(Protocol):
    """A place for stores: those of one model share their sessions."""

    def __call__(self, limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        """Open another store object."""


Places = Callable[[], Place]
"""A function that makes a new, empty place with every call."""


_PLACES = ("memory", "disk", *PROGRAMS, *one_and_others_long(f"cluster of {name}" for name in PROGRAMS))


@pytest.fixture(params=_PLACES, scope="session")
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Return a maker of places, for each kind of store. A new place closes the stores of the last one."""
    with ExitStack() as opened:
        if request.param == "memory":
            yield _in_memory
        elif request.param == "disk":
            yield lambda: _on_disk(tmp_path_factory.mktemp("sessions"), opened)
        elif request.param.startswith("cluster of "):
            program = PROGRAMS[request.param.removeprefix("cluster of ")]
            with running_cluster(program, tmp_path_factory.mktemp("cluster")) as cluster:
                yield lambda: _on_redis(cluster, opened)
        else:
            server = RedisServer(PROGRAMS[request.param], tmp_path_factory.mktemp("server"))
            with running(server):
                yield lambda: _on_redis(server, opened)


@pytest.fixture(scope="session")
def limited_places(places: Places) -> Places:
    """Return `places`, on which limits hold for all sessions together.

    On a cluster, where they hold for each partition, one partition is used.
    """
    return lambda: _in_one_partition(places())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(places: Places) -> Place:
    return places()


@pytest.fixture
def store(place: Place, clock: Clock) -> Store:
    return place(WIDE, clock)


@pytest.fixture
def limited_place(limited_places: Places) -> Place:
    return limited_places()


@pytest.fixture(params=one_and_others_long(PROGRAMS), scope="module")
def shared_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three servers that every test leaves as they were."""
    with running_cluster(PROGRAMS[request.param], tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    shared_cluster.flush()
    return shared_cluster


@pytest.fixture(params=one_and_others_long(PROGRAMS))
def replicated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    with running_cluster(PROGRAMS[request.param], tmp_path, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def store_on() -> Iterator[MakeStore]:
    """A function that makes a store for a cluster's address with some settings. It is closed in the end."""
    with made_stores(LIMITS, cluster=True) as make:
        yield make


@pytest.fixture(params=one_and_others_long(PROGRAMS))
def start_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartServer]:
    """A function that starts a server with some options. It keeps what it has confirmed when it is killed."""
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    with ExitStack() as servers:
        yield lambda *options: servers.enter_context(
            running(RedisServer(PROGRAMS[request.param], tmp_path, *durable, *options))
        )


@pytest.fixture
def server(start_server: StartServer) -> RedisServer:
    return start_server()


@pytest.fixture
def store_on_server() -> Iterator[MakeStore]:
    """A function that makes a store for a server's address with some settings. It is closed in the end."""
    with made_stores(Limits(sessions=1000, bytes=100_000_000, idle_seconds=900.0)) as make:
        yield make


def _in_one_partition(place: Place) -> Place:
    def limited(limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        store = place(limits, clock, model)
        return InOnePartition(store, model) if isinstance(store, RedisStore) and store.partitions > 1 else store

    return limited


def _in_memory() -> Place:
    stores: dict[str, MemoryStore] = {}

    def place(limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        return stores.setdefault(model, MemoryStore(limits, clock))

    return place


def _on_disk(directory: Path, opened: ExitStack) -> Place:
    opened.close()

    def place(limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        return opened.enter_context(closing(SqliteStore(directory, model, limits, clock)))

    return place


def _on_redis(server: RedisServer | LocalCluster, opened: ExitStack) -> Place:
    opened.close()
    is_cluster = isinstance(server, LocalCluster)
    server.flush()

    def place(limits: Limits, clock: Clock, model: str = "tagger") -> Store:
        # A busy machine is slow now and then.
        settings = RedisSettings(server.url, timeout_seconds=30.0, cluster=is_cluster)
        own = of_all_partitions(limits) if is_cluster else limits
        return opened.enter_context(closing(RedisStore(settings, model, own, clock)))

    return place


def of_all_partitions(limits: Limits) -> Limits:
    """The limits with which each partition has these."""
    of_client = None if limits.client_sessions is None else PARTITIONS * limits.client_sessions
    sessions, size = PARTITIONS * limits.sessions, PARTITIONS * limits.bytes
    return replace(limits, sessions=sessions, bytes=size, client_sessions=of_client)
