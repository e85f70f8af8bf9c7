import logging
import sys
import time

import pytest
from memory_store import Clock
from redis_cluster import ask
from redis_server import RedisServer
from store_calls import begin, read, write
from waiting import wait_for

from torchserve_neuron_lstm.sessions import store as interface
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreFullError, StoreTotals, Written

from .redis_stores import MakeStore, StartServer

DAY = 24 * 60 * 60.0


def test_a_host_without_the_client_is_told_what_to_install(
    store_on_server: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(interface.StoreUnavailableError, match="need the package redis: pip install redis"):
        store_on_server("redis://127.0.0.1:1").read(["a"])


def test_a_server_without_memory_refuses_what_does_not_fit(server: RedisServer, store_on_server: MakeStore) -> None:
    store = store_on_server(server.url)
    for number in range(20):
        write(store, f"{number}", bytes(6000))
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"])
    for _ in range(2):
        with pytest.raises(StoreFullError, match="give the server more memory, or allow fewer sessions"):
            store.write([RecordUpdate(f"new {number}", bytes(6000), None) for number in range(100)])
    assert store.read([f"new {number}" for number in range(100)]) == [None] * 100
    assert [read(store, f"{number}") for number in range(20)] == [bytes(6000)] * 20
    assert store.totals()[:2] == (20, 120_000)

    ask(server, "CONFIG", "SET", "maxmemory", 0)
    assert store.write([RecordUpdate(f"new {number}", bytes(6000), None) for number in range(100)]) == [Written()] * 100


def test_expired_sessions_make_room_on_a_server_without_memory(
    server: RedisServer, store_on_server: MakeStore, clock: Clock
) -> None:
    """They are removed before the changes, which would be refused otherwise, again and again."""
    store = store_on_server(server.url, clock)
    for number in range(20):
        write(store, f"{number}", bytes(60_000))
    with server.client() as client:
        full = client.info("memory")["used_memory"] - 600_000
        client.config_set("maxmemory", full)
    new = [RecordUpdate("new", bytes(60_000), None)]
    clock.now += 890
    with pytest.raises(StoreFullError):
        store.write(new)
    clock.now += 20

    assert store.write(new) == [Written()]
    assert (store.totals()[:2], store.expired()) == ((1, 60_000), 20)
    assert read(store, "new") == bytes(60_000)
    with server.client() as client:
        assert client.info("memory")["used_memory"] < full


@pytest.mark.parametrize("kind", ["open", "unconfirmed", "ended"])
def test_expired_sessions_are_removed_with_every_write_while_there_are_more(
    server: RedisServer, store_on_server: MakeStore, clock: Clock, kind: str
) -> None:
    store = store_on_server(server.url, clock)
    start = RecordUpdate("", b"record", None, ended=kind == "ended", unconfirmed=kind == "unconfirmed")
    assert store.write([start._replace(id=f"{number}") for number in range(450)]) == [Written()] * 450
    clock.now += 1000

    left = []
    for _ in range(4):
        store.write([])
        left.append(store.totals().bytes // len(b"record"))
    assert left == [250, 50, 0, 0]
    assert store.expired() == (0 if kind == "ended" else 450)


def test_a_server_that_throws_sessions_away_is_warned_of(
    start_server: StartServer, store_on_server: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server("--maxmemory", "100mb")
    with caplog.at_level(logging.WARNING):
        store_on_server(server.url).read(["a"])
        assert caplog.messages == []
        ask(server, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        store = store_on_server(server.url)
        store.read(["a"])
        store.read(["a"])

    (message,) = caplog.messages
    assert message == (
        f"the session store {server.url}/0 has maxmemory-policy allkeys-lru: it removes open sessions when its memory "
        f"is full; set it to noeviction, and new sessions are refused instead"
    )


def test_records_that_the_server_has_removed_are_counted_right(
    server: RedisServer, store_on_server: MakeStore, clock: Clock
) -> None:
    store = store_on_server(server.url, clock, Limits(3, 24, 900.0))
    store.write([RecordUpdate(name, b"record", None) for name in "abc"])
    with server.client() as client:
        for key in list(client.scan_iter("*record:*"))[:2]:
            client.delete(key)

    gone = [name for name in "abc" if read(store, name) is None]
    assert len(gone) == 2
    assert store.write([RecordUpdate(gone[0], b"anew", None)]) == [Written()]
    assert (store.totals(), store.expired()) == (StoreTotals(3, 16, 0.0), 1)
    clock.now += 1000
    assert store.write([RecordUpdate("d", b"record", None)]) == [Written()]
    assert (store.totals(), store.expired()) == (StoreTotals(1, 6, 0.0), 3)


def jump(server: RedisServer, seconds: float) -> None:
    """Let a server expire keys as if its clock had jumped ahead."""
    with server.client() as client:
        for key in list(client.scan_iter()):
            client.pexpire(key, client.pttl(key) - int(1000 * seconds))


def test_everything_is_gone_from_the_server_in_the_end(server: RedisServer, store_on_server: MakeStore) -> None:
    short, long = Limits(9, 999, 0.1, 0.1), Limits(9, 999, 10 * DAY, 10.0)
    write(store_on_server(server.url, None, long), "a", b"record")
    with server.client() as client:
        assert {-1 < client.pttl(key) / 1000 - 30 * DAY <= 2 for key in client.scan_iter()} == {True}
        write(store_on_server(server.url, None, short), "b", b"record")
        assert sorted(client.pttl(key) / 1000 > 7 * DAY + 1 for key in client.scan_iter()) == [False, True, True, True]
        client.flushall()
        write(store_on_server(server.url, None, short), "b", b"record")
        jump(server, 7 * DAY)
        wait_for(lambda: client.dbsize() == 0, 30)


def test_a_servers_clock_that_jumps_by_days_ends_no_session(
    server: RedisServer, store_on_server: MakeStore, clock: Clock
) -> None:
    """The server removes records by its clock alone, but not before 7 days, also of ended sessions."""
    store = store_on_server(server.url, clock)
    begin(store, "a")
    begin(store, "ended", ended=True)
    clock.now += 30
    clock.shared_error = 6.9 * DAY
    jump(server, clock.shared_error)

    assert [read(store, name) for name in ("a", "ended")] == [b"record"] * 2
    write(store, "a", b"next")
    assert (store.totals()[:2], store.expired()) == ((1, 10), 0)


def test_time_is_the_servers(server: RedisServer, store_on_server: MakeStore) -> None:
    store = store_on_server(server.url, None, Limits(9, 999, 1.5, 0.1))
    write(store, "a", b"record")
    assert read(store, "a") == b"record"
    time.sleep(1.6)

    assert read(store, "a") is None
    assert store.totals() == StoreTotals(0, 6, None)
    assert store.write([RecordUpdate("a", b"anew", None)]) == [Written()]
    assert store.expired() == 1


def test_the_server_holds_no_id_and_all_keys_in_one_slot(server: RedisServer, store_on_server: MakeStore) -> None:
    write(store_on_server(server.url), "the-id-of-somebody", b"the record of somebody")
    with server.client() as client:
        keys = list(client.scan_iter())

    assert len(keys) == 3
    assert {key.partition(b"}")[0] for key in keys} == {b"neuron-lstm:{tagger"}
    assert not [key for key in keys if b"the-id-of" in key]


def test_a_key_that_is_none_of_ours_is_no_session(server: RedisServer, store_on_server: MakeStore) -> None:
    store = store_on_server(server.url)
    write(store, "a", b"record")
    with server.client() as client:
        (key,) = client.scan_iter("*record:*")
        for value in (b"", b"short", b"\xff" * 16):
            client.set(key, value)
            assert store.read(["a"]) == [None]
            assert store.write([RecordUpdate("a", b"anew", None)]) == [Written()]
            assert read(store, "a") == b"anew"
        client.set(key, b"\xff" * 40)
        write(store, "a", b"anew")
        assert read(store, "a") == b"anew"
