import threading
import time
from collections.abc import Callable, Iterator

import pytest
from memory_store import Clock
from one_partition import id_in_partition
from redis import exceptions
from redis_cluster import LocalCluster, SlotMove, ask
from store_calls import begin, records, revision

from torchserve_neuron_lstm.sessions.redis.node import RedisNode, Replies
from torchserve_neuron_lstm.sessions.redis.shard_commands import hash_slot
from torchserve_neuron_lstm.sessions.session import store_key
from torchserve_neuron_lstm.sessions.settings import PARTITIONS, Limits
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreUnavailableError, Written

from .redis_stores import NAMES, TAGS, MakeStore, errors, write

SLOT = hash_slot(TAGS[3])
BeginMove = Callable[[], SlotMove]


@pytest.fixture
def begin_move(cluster: LocalCluster) -> Iterator[BeginMove]:
    """A function that begins to move the slot to another server; in the end it is where it was."""
    source = cluster.owner(SLOT)
    target = next(one for one in cluster.primaries if one is not source)
    yield lambda: cluster.begin_move(SLOT, target)
    cluster.begin_move(SLOT, source).finish()


@pytest.mark.ci
def test_a_slot_that_moves_while_sessions_are_written_loses_nothing(cluster: LocalCluster, store_on: MakeStore) -> None:
    store = store_on(cluster.url, limits=Limits(1_000_000, 10**9, 900.0))
    names = [id_in_partition(f"moves {number}", "tagger", 3) for number in range(300)]
    begin(store, *names, record=b"0")
    source = cluster.owner(SLOT)
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
        move = cluster.begin_move(SLOT, target)
        while move.move_keys(20):
            time.sleep(0.01)
        move.finish()
        is_over.set()
        writer.join()
        assert problems == []
        assert records(store.read(names[8:])) == [b"0"] * 292
        assert cluster.owner(SLOT) is target
    assert store.totals()[0] == 300


def test_what_a_slot_that_moves_refuses_is_told_in_time(
    cluster: LocalCluster, store_on: MakeStore, begin_move: BeginMove
) -> None:
    store = store_on(cluster.url, timeout_seconds=0.5)
    write(store, b"record")
    changes = [RecordUpdate(name, b"next", revision(store, name)) for name in NAMES]
    new = [RecordUpdate(id_in_partition("new", "tagger", number), b"new", None) for number in range(PARTITIONS)]
    move = begin_move()
    move.move_keys(1)

    outcomes = store.write(new)

    move.finish()
    assert errors(outcomes) == [3]
    assert outcomes.count(Written()) == PARTITIONS - 1
    patient = store_on(cluster.url)
    assert patient.write(changes) == [Written()] * PARTITIONS
    assert patient.write([new[3]]) == [Written()]


def test_the_reason_that_a_server_gave_outlasts_its_silence(
    cluster: LocalCluster, store_on: MakeStore, begin_move: BeginMove, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last round may have less time than a reply takes; what the server said before is told."""
    store = store_on(cluster.url, timeout_seconds=2.0)
    write(store, b"record")
    update = [RecordUpdate(NAMES[3], b"next", revision(store, NAMES[3]))]
    move = begin_move()
    move.move_keys(1)
    receive, replies = RedisNode.receive, 0

    def then_silent(node: RedisNode) -> Replies:
        nonlocal replies
        replies += 1
        if replies > 1:
            raise exceptions.TimeoutError("no reply")
        return receive(node)

    monkeypatch.setattr(RedisNode, "receive", then_silent)
    with pytest.raises(StoreUnavailableError, match=rf"slot {SLOT} moves|Multiple keys request during rehashing"):
        store.write(update)

    assert replies > 2
    move.finish()


@pytest.mark.few(2)
@pytest.mark.parametrize("first", ["open", "record", "sizes"])
def test_no_session_is_missing_while_its_slot_moves(
    cluster: LocalCluster, store_on: MakeStore, begin_move: BeginMove, first: str
) -> None:
    store = store_on(cluster.url, timeout_seconds=0.2)
    write(store, b"record")
    move = begin_move()
    keys = sorted(ask(move.source, "CLUSTER", "GETKEYSINSLOT", SLOT, 9), key=lambda key: first.encode() not in key)
    found = []
    for key in keys:
        move.move_key(key)
        found.append(store.read(NAMES)[3])
        time.sleep(0.2)
    move.finish()

    assert len(keys) == 3
    assert all(isinstance(one, StoreUnavailableError) or records([one]) == [b"record"] for one in found)
    assert records(store_on(cluster.url).read(NAMES)) == [b"record"] * PARTITIONS


def test_sessions_that_expire_while_their_slot_moves_are_counted_right(
    cluster: LocalCluster, store_on: MakeStore, begin_move: BeginMove, clock: Clock
) -> None:
    """A server ends the script that would remove a record which has moved, before any change."""
    tag = TAGS[3]
    store = store_on(cluster.url, clock, Limits(16_000, 10**8, 900.0, client_sessions=1600), timeout_seconds=1.0)
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
    seen = revision(store, new)
    move = begin_move()
    move.move_key(f"neuron-lstm:{{{tag}}}:record:{store_key(old, 'tagger').hex()}")
    with pytest.raises(StoreUnavailableError, match="non local key"):
        store.write([RecordUpdate(new, b"next", seen)])
    move.finish()
    time.sleep(1.0)  # so long nobody asks for what did not answer

    assert records(store.read([new])) == [b""]
    assert store.write([RecordUpdate(new, b"next", seen)]) == [Written()]
    clock.now += 2000
    for number in range(3):
        clock.now += 10
        begin(store, id_in_partition(f"last {number}", "tagger", 3), record=b"")
    assert store.totals()[:2] == (3, 0)
    assert not ask(move.target, "HGETALL", f"neuron-lstm:{{{tag}}}:clients")
