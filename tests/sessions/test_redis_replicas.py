import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis_cluster import ask
from redis_server import SECONDS, RedisServer, one_and_others_long, running, server_programs
from store_calls import WIDE, begin, records, revision
from waiting import wait_for

from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.settings import RedisSettings
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreUnavailableError, Written

PROGRAMS = server_programs()
AT_ONCE = ("--repl-diskless-sync-delay", "0")
"""A server waits some seconds for more replicas before it sends them its data."""


@pytest.fixture(params=one_and_others_long(PROGRAMS))
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A server and its replica, which has caught up."""
    with ExitStack() as stack:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
        first = stack.enter_context(running(RedisServer(PROGRAMS[request.param], tmp_path / "first", *AT_ONCE)))
        follow = ("--replicaof", "127.0.0.1", str(first.port))
        second = stack.enter_context(running(RedisServer(PROGRAMS[request.param], tmp_path / "second", *follow)))
        with first.client() as client:
            wait_for(lambda: client.info("replication").get("slave0", {}).get("state") == "online", SECONDS)
        yield first, second


def store_on(server: RedisServer, replicas: int = 0, timeout_seconds: float = 30.0) -> closing[RedisStore]:
    settings = RedisSettings(server.url, timeout_seconds=timeout_seconds, replicas=replicas)
    return closing(RedisStore(settings, "tagger", WIDE))


def test_what_was_answered_is_on_the_replica(servers: tuple[RedisServer, RedisServer]) -> None:
    first, second = servers
    with store_on(first, replicas=1) as store:
        begin(store, "a")
        for number in range(20):
            assert store.write([RecordUpdate("a", b"%d" % number, revision(store, "a"))]) == [Written()]
    first.kill()
    ask(second, "REPLICAOF", "NO", "ONE")
    with store_on(second) as store:
        assert records(store.read(["a"])) == [b"19"]
        assert store.write([RecordUpdate("a", b"next", revision(store, "a"))]) == [Written()]


def test_a_primary_that_became_a_replica_is_told_and_is_used_when_it_is_one_again(
    servers: tuple[RedisServer, RedisServer],
) -> None:
    """A failover may leave a server running. It serves what it has, and the message says what to do."""
    first, second = servers
    with store_on(first) as store:
        begin(store, "a")
        before = revision(store, "a")
        ask(second, "REPLICAOF", "NO", "ONE")
        ask(first, "REPLICAOF", "127.0.0.1", second.port)

        with pytest.raises(StoreUnavailableError, match=r"it is a replica, .* give the address of the primary"):
            store.write([RecordUpdate("a", b"next", before)])

        ask(first, "REPLICAOF", "NO", "ONE")
        assert store.write([RecordUpdate("a", b"next", before)]) == [Written()]
        assert records(store.read(["a"])) == [b"next"]


def test_one_address_leads_to_the_promoted_replica(servers: tuple[RedisServer, RedisServer]) -> None:
    first, second = servers
    with store_on(first, replicas=1) as store:
        begin(store, "a")
        first.kill()
        with pytest.raises(StoreUnavailableError, match="Connection refused"):
            store.read(["a"])
        ask(second, "REPLICAOF", "NO", "ONE")
        ask(second, "CONFIG", "SET", "port", first.port)
        with store_on(first) as unreplicated:
            assert unreplicated.write([RecordUpdate("a", b"next", revision(unreplicated, "a"))]) == [Written()]
        assert records(store.read(["a"])) == [b"next"]


def test_without_the_replica_a_request_is_refused_in_time(servers: tuple[RedisServer, RedisServer]) -> None:
    """The change may have been made; without the setting nobody waits."""
    first, second = servers
    os.kill(second.pid, signal.SIGSTOP)
    try:
        with (
            store_on(first, replicas=1, timeout_seconds=2.0) as store,
            pytest.raises(StoreUnavailableError, match=r"has 0 replicas that are up to date, and replicas: 1 are"),
        ):
            begin(store, "a")
        with store_on(first) as store:
            begin(store, "b")
    finally:
        os.kill(second.pid, signal.SIGCONT)
    with store_on(first, replicas=1) as store:
        begin(store, "c")
