"""Sessions on real clusters: shards that fail, slots that move, and what a batch costs."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from memory_store import Clock
from one_partition import id_in_partition
from redis_cluster import LocalCluster, ask, running_cluster
from redis_server import RedisServer, running, server_programs
from store_calls import begin, records, revision, stored
from tls import certificate, tls_in_front

from torchserve_neuron_lstm.sessions.ids import store_key
from torchserve_neuron_lstm.sessions.partitions import hash_slot, partition_tags
from torchserve_neuron_lstm.sessions.redis_node import RedisNode, Replies
from torchserve_neuron_lstm.sessions.redis_partition import Command
from torchserve_neuron_lstm.sessions.redis_store import RedisStore
from torchserve_neuron_lstm.sessions.settings import PARTITIONS, Limits, RedisSettings
from torchserve_neuron_lstm.sessions.store import (
    LimitExceeded,
    RecordUpdate,
    StoreTotals,
    StoreUnavailableError,
    Written,
)

LIMITS = Limits(sessions=16_000, bytes=100_000_000, idle_seconds=900.0)
PROGRAMS = server_programs()
NAMES = [id_in_partition("session", "tagger", partition) for partition in range(PARTITIONS)]
"""A session of each partition."""
TAGS = partition_tags("tagger")

MakeStore = Callable[..., RedisStore]


@pytest.fixture(params=PROGRAMS, scope="module")
def shared_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three servers that every test leaves as they were."""
    with running_cluster(PROGRAMS[request.param], tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    """The three servers, without keys."""
    shared_cluster.flush()
    return shared_cluster


@pytest.fixture(params=PROGRAMS)
def replicated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """Three servers with a replica each, for one test."""
    with running_cluster(PROGRAMS[request.param], tmp_path, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def store_on() -> Iterator[MakeStore]:
    """A function that makes a store for a cluster's address with some settings. It is closed in the end."""
    with ExitStack() as opened:

        def make(url: str, clock: Clock | None = None, limits: Limits = LIMITS, **settings: Any) -> RedisStore:
            given = {"timeout_seconds": 30.0, "cluster": True} | settings  # a busy machine is slow now and then
            store = RedisStore(RedisSettings(url, **given), "tagger", limits, clock)
            opened.callback(store.close)
            return store

        yield make


def write(store: RedisStore, record: bytes, names: Sequence[str] = NAMES) -> list[object]:
    """Write a record of each session in the place of the stored one."""
    found = [stored(store, name) for name in names]
    changes = [RecordUpdate(name, record, one and one.revision) for name, one in zip(names, found, strict=True)]
    return [*store.write(changes)]


def errors(found: Sequence[object]) -> list[int]:
    """The partitions whose session has an error."""
    return [number for number, one in enumerate(found) if isinstance(one, StoreUnavailableError)]


def partitions_of(cluster: LocalCluster, server: RedisServer) -> list[int]:
    """The partitions that a server has."""
    return [number for number, tag in enumerate(TAGS) if cluster.owner(hash_slot(tag)) is server]


class Wire:
    """A record of the calls of all connections, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.commands = 0
        send, receive = RedisNode.send, RedisNode.receive

        def sent(node: RedisNode, commands: Sequence[Command], replicas: int = 0, seconds: float = 0.0) -> None:
            self.calls.append("send")
            self.commands += len(commands)
            send(node, commands, replicas, seconds)

        def received(node: RedisNode, deadline: float | None = None) -> Replies:
            self.calls.append("receive")
            return receive(node, deadline)

        monkeypatch.setattr(RedisNode, "send", sent)
        monkeypatch.setattr(RedisNode, "receive", received)


def test_all_shards_have_a_share_of_the_sessions(cluster: LocalCluster, store_on: MakeStore) -> None:
    """The shares are as equal as 16 partitions on three servers can be; no server holds an id."""
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
    """All commands are sent before any reply is read, with one script for each partition."""
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
    """Stores that were given different nodes share their sessions."""
    first, *others = (store_on(server.url) for server in cluster.servers)
    write(first, b"record")

    for other in others:
        assert records(other.read(NAMES)) == [b"record"] * PARTITIONS


def test_a_limit_holds_for_each_partition(cluster: LocalCluster, store_on: MakeStore) -> None:
    """The refusal names the share; all partitions together never have more than the limit."""
    store = store_on(cluster.url, Clock(), Limits(40, 100_000, 900.0))
    starts = [RecordUpdate(f"{number}", b"", None) for number in range(1000)]

    outcomes = store.write(starts)

    assert outcomes.count(Written()) == PARTITIONS * 2
    assert outcomes.count(LimitExceeded("2 sessions in one of 16 partitions", 900.0)) == 1000 - PARTITIONS * 2
    assert store.totals().sessions == PARTITIONS * 2


def test_expired_sessions_of_all_partitions_are_removed(cluster: LocalCluster, store_on: MakeStore) -> None:
    """Any write removes them, also from partitions that it does not change."""
    clock = Clock()
    store = store_on(cluster.url, clock)
    write(store, b"record")
    clock.now += 1000

    begin(store, "new")

    assert store.expired() == PARTITIONS
    assert store.totals() == StoreTotals(1, 6, 0.0)


def test_servers_that_have_forgotten_the_scripts_are_told_them_again(
    cluster: LocalCluster, store_on: MakeStore
) -> None:
    """An example is a failover."""
    store = store_on(cluster.url)
    write(store, b"record")
    for server in cluster.primaries:
        ask(server, "SCRIPT", "FLUSH")

    assert write(store, b"next") == [Written()] * PARTITIONS
    assert records(store.read(NAMES)) == [b"next"] * PARTITIONS


def test_connections_that_were_cut_are_made_again(cluster: LocalCluster, store_on: MakeStore) -> None:
    """Servers close connections that are idle for long."""
    store = store_on(cluster.url)
    write(store, b"record")
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    for server in cluster.primaries:
        ask(server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert store.write(changes) == [Written()] * PARTITIONS
    store.close()
    assert records(store.read(NAMES)) == [b"next"] * PARTITIONS


def test_a_slot_that_moves_while_sessions_are_written_loses_nothing(cluster: LocalCluster, store_on: MakeStore) -> None:
    """Requests come before, while and after its keys move: they wait, or are repeated."""
    store = store_on(cluster.url, limits=Limits(1_000_000, 10**9, 900.0))
    slot = hash_slot(TAGS[3])
    names = [id_in_partition(f"moves {number}", "tagger", 3) for number in range(300)]
    begin(store, *names, record=b"0")
    source = cluster.owner(slot)
    for target in (next(one for one in cluster.primaries if one is not source), source):
        count = int(records(store.read(names[:1]))[0] or b"0")
        problems: list[object] = []
        is_over = threading.Event()

        def increment(began: int = count, problems: list[object] = problems, over: threading.Event = is_over) -> None:
            number = began
            while not over.is_set() or number < began + 3:
                number += 1
                problems += [one for one in write(store, b"%d" % number, names[:8]) if one != Written()]
            problems += [one for one in records(store.read(names[:8])) if one != b"%d" % number]

        writer = threading.Thread(target=increment)
        writer.start()
        move = cluster.begin_move(slot, target)
        while move.move_keys(20):
            time.sleep(0.01)
        move.finish()
        is_over.set()
        writer.join()
        assert problems == []
        assert records(store.read(names[8:])) == [b"0"] * 292
        assert cluster.owner(slot) is target
    assert store.totals()[0] == 300


def test_what_a_slot_that_moves_refuses_is_told_in_time(cluster: LocalCluster, store_on: MakeStore) -> None:
    """Sessions of other partitions go on; its own are refused until it has moved, and then go on too."""
    store = store_on(cluster.url, timeout_seconds=0.5)
    write(store, b"record")
    slot = hash_slot(TAGS[3])
    source = cluster.owner(slot)
    target = next(one for one in cluster.primaries if one is not source)
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    new = [RecordUpdate(id_in_partition("new", "tagger", number), b"new", None) for number in range(PARTITIONS)]
    move = cluster.begin_move(slot, target)
    move.move_keys(1)

    outcomes = store.write(new)

    move.finish()
    assert errors(outcomes) == [3]
    assert outcomes.count(Written()) == PARTITIONS - 1
    patient = store_on(cluster.url)
    assert patient.write(changes) == [Written()] * PARTITIONS
    assert patient.write([new[3]]) == [Written()]
    cluster.begin_move(slot, source).finish()


@pytest.mark.parametrize("first", ["open", "record", "sizes"])
def test_no_session_is_missing_while_its_slot_moves(cluster: LocalCluster, store_on: MakeStore, first: str) -> None:
    """Its keys are on two servers, in any order: it is read as it is, or the request is refused."""
    store = store_on(cluster.url, timeout_seconds=0.2)
    write(store, b"record")
    slot = hash_slot(TAGS[3])
    source = cluster.owner(slot)
    target = next(one for one in cluster.primaries if one is not source)
    move = cluster.begin_move(slot, target)
    keys = sorted(ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 9), key=lambda key: first.encode() not in key)
    found = []
    for key in keys:
        move.move_key(key)
        found.append(store.read(NAMES)[3])
        time.sleep(0.2)
    move.finish()

    assert len(keys) == 3
    assert all(isinstance(one, StoreUnavailableError) or records([one]) == [b"record"] for one in found)
    assert records(store_on(cluster.url).read(NAMES)) == [b"record"] * PARTITIONS
    cluster.begin_move(slot, source).finish()


def test_sessions_that_expire_while_their_slot_moves_are_counted_right(
    cluster: LocalCluster, store_on: MakeStore
) -> None:
    """A server ends the script that would remove a record which has moved; nothing is removed by half."""
    clock, tag = Clock(), TAGS[3]
    store = store_on(cluster.url, clock, Limits(16_000, 10**8, 900.0, client_sessions=1600), timeout_seconds=0.5)
    old, new, ended, other = (id_in_partition(name, "tagger", 3) for name in ("old", "new", "ended", "other"))
    more = [id_in_partition(f"{number}", "tagger", 3) for number in range(9)]
    assert store.write([RecordUpdate(name, bytes(100), None, client="c") for name in (old, *more)]) == [Written()] * 10
    clock.now += 880
    starts = [
        RecordUpdate(new, b"", None, client="c"),
        RecordUpdate(ended, b"", None, ended=True),
        RecordUpdate(other, b"", None, unconfirmed=True),
    ]
    assert store.write(starts) == [Written()] * 3  # so that every key of the partition is there
    clock.now += 30
    slot, seen = hash_slot(tag), revision(store, new)
    source = cluster.owner(slot)
    target = next(one for one in cluster.primaries if one is not source)
    move = cluster.begin_move(slot, target)
    move.move_key(f"neuron-lstm:{{{tag}}}:record:{store_key(old, 'tagger').hex()}")
    with pytest.raises(StoreUnavailableError, match="non local key"):
        store.write([RecordUpdate(new, b"next", seen)])
    move.finish()
    time.sleep(0.5)

    assert records(store.read([new])) == [b"next"]
    clock.now += 2000
    for number in range(3):
        clock.now += 10
        begin(store, id_in_partition(f"last {number}", "tagger", 3), record=b"")
    assert store.totals()[:2] == (3, 0)
    assert not ask(target, "HGETALL", f"neuron-lstm:{{{tag}}}:clients")
    cluster.begin_move(slot, source).finish()


def test_a_shard_that_was_killed_fails_its_own_sessions_until_a_replica_takes_over(
    replicated: LocalCluster, store_on: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """All that a replica acknowledged is there; the sessions of other shards go on meanwhile."""
    store = store_on(replicated.url, replicas=1)
    for number in range(20):
        assert write(store, b"%d" % number) == [Written()] * PARTITIONS
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    killed = replicated.primaries[1]
    theirs = partitions_of(replicated, killed)
    hasty = store_on(replicated.url, timeout_seconds=0.5)
    assert records(hasty.read(NAMES)) == [b"19"] * PARTITIONS
    killed.kill()

    found = hasty.read(NAMES)

    assert errors(found) == theirs
    assert records([one for one in found if not isinstance(one, StoreUnavailableError)]) == [b"19"] * (16 - len(theirs))
    assert errors(hasty.write(changes)) == theirs
    assert hasty.write([]) == []
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        hasty.totals()
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        hasty.read([NAMES[theirs[0]]])
    promoted = replicated.wait_for_failover(hash_slot(TAGS[theirs[0]]), killed)
    assert promoted is not killed
    patient = store_on(replicated.servers[2].url)
    assert records(patient.read([NAMES[one] for one in theirs])) == [b"19"] * len(theirs)
    assert patient.write([changes[one] for one in theirs]) == [Written()] * len(theirs)
    with caplog.at_level(logging.INFO):
        time.sleep(0.5)
        assert records(hasty.read(NAMES)) == [b"next"] * PARTITIONS
    assert f"has partitions {theirs} again" in caplog.text
    killed.start()
    replicated.wait_until_complete()
    assert replicated.replicas_of(promoted) == [killed]
    assert write(store, b"in the end") == [Written()] * PARTITIONS


def test_a_request_waits_for_a_failover_within_its_time_limit(replicated: LocalCluster, store_on: MakeStore) -> None:
    """With a long limit, no request is refused."""
    store = store_on(replicated.url)
    write(store, b"record")
    replicated.primaries[0].kill()

    assert write(store, b"next") == [Written()] * PARTITIONS


def test_a_shard_without_its_replica_refuses_its_own_sessions(replicated: LocalCluster, store_on: MakeStore) -> None:
    """The change may have been made; other shards have their replicas."""
    store = store_on(replicated.url, replicas=1, timeout_seconds=2.0)
    begin(store, *NAMES)
    primary = replicated.primaries[2]
    (replica,) = replicated.replicas_of(primary)
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    replica.kill()

    outcomes = store.write(changes)

    assert errors(outcomes) == partitions_of(replicated, primary)
    (message,) = {str(outcomes[one]) for one in errors(outcomes)}
    assert message.startswith(f"the session store {primary.url}/0 has 0 replicas that are up to date")


def test_a_shard_that_hangs_is_not_waited_for_by_every_batch(cluster: LocalCluster, store_on: MakeStore) -> None:
    """One batch waits for as long as the time limit; the next ones are answered without that shard."""
    store = store_on(cluster.url, timeout_seconds=2.0)
    write(store, b"record")
    hanging = cluster.primaries[1]
    theirs = partitions_of(cluster, hanging)
    os.kill(hanging.pid, signal.SIGSTOP)
    try:
        assert errors(store.read(NAMES)) == theirs
        found = store.read(NAMES)
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
    assert errors(found) == theirs
    assert "did not answer within 2 seconds" in str(found[theirs[0]])
    cluster.wait_until_complete()
    time.sleep(2.0)
    assert errors(store.read(NAMES)) == []


def test_a_cluster_that_cannot_be_reached_is_told(store_on: MakeStore) -> None:
    """The error has its address; no error is raised before the first call."""
    store = store_on("redis://127.0.0.1:1", timeout_seconds=0.2)
    for call in (lambda: store.read(["a"]), lambda: store.write([RecordUpdate("a", b"", None)]), store.totals):
        with pytest.raises(StoreUnavailableError, match=r"the session store redis://127\.0\.0\.1:1/0 cannot be used"):
            call()
    with pytest.raises(StoreUnavailableError):
        store.write([])


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_setting_must_fit_the_servers(
    cluster: LocalCluster, store_on: MakeStore, tmp_path: Path, program: Path
) -> None:
    """The message says what to change."""
    with (
        running(RedisServer(program, tmp_path)) as single,
        pytest.raises(StoreUnavailableError, match="it is no node of a cluster: leave out cluster: true"),
    ):
        store_on(single.url).read(["a"])
    without = next(server for server in cluster.primaries if server is not cluster.owner(hash_slot("tagger")))
    with pytest.raises(StoreUnavailableError, match="it is a node of a cluster: set cluster: true"):
        store_on(without.url, cluster=False).read(["a"])


def test_the_password_is_sent_to_every_node(
    cluster: LocalCluster, store_on: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong one is refused at once, and is not shown."""
    rights = "+get +mget +set +del +getrange +pttl +pexpire +zadd +zrem +zcard +zcount +zscore +zrange +zrangebyscore"
    more = "+hget +hset +hdel +hincrby +time +evalsha +script|load +cluster|slots +select"
    for server in cluster.primaries:
        user = ("SETUSER", "neuron", "on", ">s3cret", "~neuron-lstm:*")
        ask(server, "ACL", *user, *f"{rights} {more}".split())
    monkeypatch.setenv("SESSIONS_PASSWORD", "s3cret")
    who = {"username": "neuron", "password_env": "SESSIONS_PASSWORD"}
    assert write(store_on(cluster.url, **who), b"record") == [Written()] * PARTITIONS

    monkeypatch.setenv("SESSIONS_PASSWORD", "wr0ng")
    with pytest.raises(StoreUnavailableError, match="check the username and the password in SESSIONS_PASS") as refusal:
        store_on(cluster.url, **who).read(NAMES)
    assert "wr0ng" not in str(refusal.value)
    monkeypatch.delenv("SESSIONS_PASSWORD")
    with pytest.raises(StoreUnavailableError, match=r"SESSIONS_PASSWORD, which holds .* password, is not set"):
        store_on(cluster.url, **who).read(NAMES)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_node_is_asked_over_tls(program: Path, store_on: MakeStore, tmp_path: Path) -> None:
    """The nodes name each other by the ports that have TLS."""
    crt, key = certificate(tmp_path, "127.0.0.1")
    with ExitStack() as stack:
        ports: list[int] = []

        def with_tls(port: int) -> int:
            ports.append(stack.enter_context(tls_in_front(port, crt, key)))
            return ports[-1]

        stack.enter_context(running_cluster(program, tmp_path, announced=with_tls))
        store = store_on(f"rediss://127.0.0.1:{ports[0]}", ca_file=str(crt))
        assert write(store, b"record") == [Written()] * PARTITIONS
        assert records(store.read(NAMES)) == [b"record"] * PARTITIONS


def test_servers_that_throw_sessions_away_are_warned_of(
    cluster: LocalCluster, store_on: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the server."""
    odd = cluster.primaries[2]
    ask(odd, "CONFIG", "SET", "maxmemory", "100mb")
    ask(odd, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        store = store_on(cluster.url)
        write(store, b"record")
        write(store, b"next")
    finally:
        ask(odd, "CONFIG", "SET", "maxmemory-policy", "noeviction")
        ask(odd, "CONFIG", "SET", "maxmemory", 0)
    assert [message.split(":")[0:3] for message in caplog.messages] == [
        f"the session store {odd.url}/0 has maxmemory-policy allkeys-lru: it removes".split(":")[0:3]
    ]
