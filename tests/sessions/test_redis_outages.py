"""A Redis server that is gone, hangs or was restarted: no write is lost or made twice."""

import os
import signal

import pytest
from lossy import lossy_way
from memory_store import Clock
from redis import exceptions
from redis_server import RedisServer
from store_calls import begin, read, revision, stored, write

from torchserve_neuron_lstm.sessions.redis.node import Address, RedisNode
from torchserve_neuron_lstm.sessions.settings import RedisSettings
from torchserve_neuron_lstm.sessions.store import Conflict, RecordUpdate, StoreTotals, StoreUnavailableError, Written

from .redis_stores import MakeStore


def test_a_server_that_was_killed_has_what_was_written_when_it_is_back(
    server: RedisServer, store_on_server: MakeStore
) -> None:
    store = store_on_server(server.url)
    for number in range(50):
        write(store, f"{number}", b"%d" % number)
    server.kill()

    for call in (lambda: store.read(["0"]), lambda: store.write([RecordUpdate("0", b"", None)]), store.totals):
        with pytest.raises(StoreUnavailableError, match=rf"the session store {server.url}/0 cannot be used: .*refused"):
            call()
    server.start()
    assert [read(store, f"{number}") for number in range(50)] == [b"%d" % number for number in range(50)]
    write(store, "0", b"next")
    assert store.totals().sessions == 50


def test_a_write_whose_answer_was_lost_is_made_once(server: RedisServer, store_on_server: MakeStore) -> None:
    with lossy_way(server.port) as way:
        store = store_on_server(f"redis://127.0.0.1:{way.port}", Clock())
        write(store, "a", b"record")
        found = stored(store, "a")
        assert found is not None

        way.answers_to_lose = 1
        changes = [RecordUpdate("a", b"next", found.revision), RecordUpdate("b", b"new", None)]
        assert store.write([*changes, RecordUpdate("c", b"", None, True)]) == [Written()] * 3
        assert [read(store, name) for name in "abc"] == [b"next", b"new", b""]
        assert store.totals() == StoreTotals(2, 7, 0.0)
        way.answers_to_lose = 2
        with pytest.raises(StoreUnavailableError):
            store.write([RecordUpdate("a", b"unknown", None)])
        assert read(store, "a") == b"next"


def test_a_write_that_could_not_be_sent_at_first_may_conflict(
    server: RedisServer, store_on_server: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was never asked before: the conflict is certain, and the caller reads the session again."""
    store, other = store_on_server(server.url), store_on_server(server.url)
    begin(store, "a")
    change = RecordUpdate("a", b"next", revision(store, "a"))
    write(other, "a", b"by the other")
    store.close()
    connect, failures = RedisNode.__init__, iter([exceptions.ConnectionError("no route")])

    def connect_later(node: RedisNode, settings: RedisSettings, address: Address, seconds: float) -> None:
        for failure in failures:
            raise failure
        connect(node, settings, address, seconds)

    monkeypatch.setattr(RedisNode, "__init__", connect_later)
    assert store.write([change]) == [Conflict()]


def test_a_server_that_hangs_is_told_in_time(server: RedisServer, store_on_server: MakeStore) -> None:
    store = store_on_server(server.url, timeout_seconds=0.2)
    write(store_on_server(server.url), "a", b"record")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match=r"it did not answer within 0\.2 seconds"):
            store.read(["a"])
    finally:
        os.kill(server.pid, signal.SIGCONT)

    store = store_on_server(server.url)
    assert read(store, "a") == b"record"
