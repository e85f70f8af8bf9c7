"""Sessions on real clusters: their shares, what a batch costs, and settings that do not fit."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from memory_store import Clock
from redis import exceptions
from redis_cluster import LocalCluster, ask, running_cluster
from redis_server import RedisServer, one_and_others_long, running
from store_calls import begin, records, revision
from tls import certificate, tls_in_front

from torchserve_neuron_lstm.sessions import store as interface
from torchserve_neuron_lstm.sessions.redis.node import RedisNode, Replies
from torchserve_neuron_lstm.sessions.redis.shard_commands import Command, hash_slot
from torchserve_neuron_lstm.sessions.settings import PARTITIONS, Limits
from torchserve_neuron_lstm.sessions.store import Conflict, RecordUpdate, StoreTotals, StoreUnavailableError, Written

from .conftest import PROGRAMS
from .redis_stores import NAMES, RIGHTS, TAGS, MakeStore, write


class Wire:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.commands = 0
        send, receive = RedisNode.send, RedisNode.receive

        def sent(node: RedisNode, commands: Sequence[Command], deadline: float, replicas: int = 0) -> None:
            self.calls.append("send")
            self.commands += len(commands)
            send(node, commands, deadline, replicas)

        def received(node: RedisNode) -> Replies:
            self.calls.append("receive")
            return receive(node)

        monkeypatch.setattr(RedisNode, "send", sent)
        monkeypatch.setattr(RedisNode, "receive", received)


def test_all_shards_have_a_share_of_the_sessions(cluster: LocalCluster, store_on: MakeStore) -> None:
    store = store_on(cluster.url)
    assert write(store, b"record") == [Written()] * PARTITIONS

    shares = [ask(server, "KEYS", "*:record:*") for server in cluster.primaries]
    assert sorted(map(len, shares)) == [5, 5, 6]
    assert {key.partition(b"}")[0].decode() for keys in shares for key in keys} == {
        f"neuron-lstm:{{{tag}" for tag in TAGS
    }
    assert not [key for keys in shares for key in keys if b"session" in key]
    assert store.totals()[:2] == (PARTITIONS, 6 * PARTITIONS)


def test_a_batch_takes_one_round_trip_to_all_shards(
    cluster: LocalCluster, store_on: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(cluster.url)
    write(store, b"record")
    wire = Wire(monkeypatch)
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]

    wire.calls.clear()
    wire.commands = 0
    assert store.write(changes) == [Written()] * PARTITIONS
    assert (wire.calls, wire.commands) == (["send"] * 3 + ["receive"] * 3, PARTITIONS)
    wire.calls.clear()
    store.read(NAMES)
    assert wire.calls == ["send"] * 3 + ["receive"] * 3
    wire.calls.clear()
    store.read(NAMES[:1])
    assert wire.calls == ["send", "receive"]


def test_any_node_names_the_others(cluster: LocalCluster, store_on: MakeStore) -> None:
    first, *others = (store_on(server.url) for server in cluster.servers)
    write(first, b"record")

    for other in others:
        assert records(other.read(NAMES)) == [b"record"] * PARTITIONS


def test_a_limit_holds_for_each_partition(cluster: LocalCluster, store_on: MakeStore) -> None:
    store = store_on(cluster.url, Clock(), Limits(40, 100_000, 900.0))
    outcomes = store.write([RecordUpdate(f"{number}", b"", None) for number in range(1000)])

    assert outcomes.count(Written()) == PARTITIONS * 2
    assert outcomes.count(interface.LimitExceeded("2 sessions in one of 16 partitions", 900.0)) == 1000 - PARTITIONS * 2
    assert store.totals().sessions == PARTITIONS * 2


def test_expired_sessions_of_all_partitions_are_removed(cluster: LocalCluster, store_on: MakeStore) -> None:
    clock = Clock()
    store = store_on(cluster.url, clock)
    write(store, b"record")
    clock.now += 1000

    begin(store, "new")

    assert store.expired() == PARTITIONS
    assert store.totals() == StoreTotals(1, 6, 0.0)


@pytest.mark.parametrize(
    "command", ["CLIENT KILL TYPE normal SKIPME yes", "SCRIPT FLUSH"], ids=["connections", "scripts"]
)
def test_what_servers_have_dropped_is_made_again(cluster: LocalCluster, store_on: MakeStore, command: str) -> None:
    """Servers close connections that are idle for long, and have no scripts after a failover."""
    store = store_on(cluster.url)
    write(store, b"record")
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    for server in cluster.primaries:
        ask(server, *command.split())

    assert store.write(changes) == [Written()] * PARTITIONS
    store.close()
    assert records(store.read(NAMES)) == [b"next"] * PARTITIONS


@pytest.mark.parametrize("error", [exceptions.ConnectionError, exceptions.TimeoutError])
def test_a_write_whose_replies_were_lost_before_anothers_write_is_no_conflict(
    cluster: LocalCluster, store_on: MakeStore, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """The outcome is unknown only where the reply was lost and another worker has written since."""
    store, other = store_on(cluster.url), store_on(cluster.url)
    write(store, b"record")
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    assert write(other, b"by the other", NAMES[15:]) == [Written()]
    receive, lost = RedisNode.receive, False

    def lose_the_first(node: RedisNode) -> Replies:
        nonlocal lost
        replies = receive(node)
        if not lost:
            lost = True
            assert write(other, b"by the other", NAMES[:1]) == [Written()]
            raise error("no reply")
        return replies

    monkeypatch.setattr(RedisNode, "receive", lose_the_first)
    unknown, *outcomes = store.write(changes)

    assert isinstance(unknown, StoreUnavailableError)
    assert "the reply to a change was lost, and another worker has written the session since" in str(unknown)
    assert outcomes == [Written()] * (PARTITIONS - 2) + [Conflict()]
    assert records(store.read(NAMES)) == [b"by the other", *[b"next"] * (PARTITIONS - 2), b"by the other"]


@pytest.mark.parametrize("is_moved", [False, True], ids=["LOADING", "MOVED"])
def test_a_write_that_was_refused_at_first_may_conflict(
    cluster: LocalCluster, store_on: MakeStore, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    """A server that refuses a script has made no change, so the conflict of the repeated one is certain."""
    store, other = store_on(cluster.url), store_on(cluster.url)
    write(store, b"record", NAMES[:1])
    change = RecordUpdate(NAMES[0], b"next", revision(store, NAMES[0]))
    assert write(other, b"by the other", NAMES[:1]) == [Written()]
    slot = hash_slot(TAGS[0])
    moved = exceptions.MovedError(f"{slot} 127.0.0.1:{cluster.owner(slot).port}")
    refusals: Iterator[Exception] = iter([moved if is_moved else exceptions.BusyLoadingError("data")])
    receive = RedisNode.receive

    def refused_first(node: RedisNode) -> Replies:
        replies = receive(node)
        return next((Replies([refusal], None) for refusal in refusals), replies)

    monkeypatch.setattr(RedisNode, "receive", refused_first)
    assert store.write([change]) == [Conflict()]
    assert next(refusals, None) is None


@pytest.mark.parametrize("cluster", [False, True], ids=["server", "cluster"])
def test_an_address_that_cannot_be_reached_is_told(store_on: MakeStore, cluster: bool) -> None:
    store = store_on("redis://127.0.0.1:1", timeout_seconds=0.2, cluster=cluster)
    for call in (lambda: store.read(["a"]), lambda: store.write([RecordUpdate("a", b"", None)]), store.totals):
        with pytest.raises(StoreUnavailableError, match=r"the session store redis://127\.0\.0\.1:1/0 cannot be used"):
            call()
    with pytest.raises(StoreUnavailableError):
        store.write([])


@pytest.mark.parametrize("program", one_and_others_long(PROGRAMS))
def test_the_setting_must_fit_servers(cluster: LocalCluster, store_on: MakeStore, tmp_path: Path, program: str) -> None:
    with (
        running(RedisServer(PROGRAMS[program], tmp_path)) as single,
        pytest.raises(StoreUnavailableError, match="it is not a node of a cluster: leave out cluster: true"),
    ):
        store_on(single.url).read(["a"])
    without = next(server for server in cluster.primaries if server is not cluster.owner(hash_slot("tagger")))
    with pytest.raises(StoreUnavailableError, match="it is a node of a cluster: set cluster: true"):
        store_on(without.url, cluster=False).read(["a"])


def test_the_password_is_sent_to_every_node(
    cluster: LocalCluster, store_on: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for server in cluster.primaries:
        ask(server, "ACL", "SETUSER", "neuron", "on", ">s3cret", "~neuron-lstm:*", *RIGHTS, "+cluster|slots")
    monkeypatch.setenv("SESSIONS_PASSWORD", "s3cret")
    who = {"username": "neuron", "password_env": "SESSIONS_PASSWORD"}
    assert write(store_on(cluster.url, **who), b"record") == [Written()] * PARTITIONS


@pytest.mark.parametrize("program", one_and_others_long(PROGRAMS))
def test_every_node_is_asked_over_tls(program: str, store_on: MakeStore, tmp_path: Path) -> None:
    crt, key = certificate(tmp_path, "127.0.0.1")
    with ExitStack() as stack:
        ports: list[int] = []

        def with_tls(port: int) -> int:
            ports.append(stack.enter_context(tls_in_front(port, crt, key)))
            return ports[-1]

        stack.enter_context(running_cluster(PROGRAMS[program], tmp_path, announced=with_tls))
        store = store_on(f"rediss://127.0.0.1:{ports[0]}", ca_file=str(crt))
        assert write(store, b"record") == [Written()] * PARTITIONS
        assert records(store.read(NAMES)) == [b"record"] * PARTITIONS
