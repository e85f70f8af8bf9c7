from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from lossy import lossy_way
from memory_store import Clock
from redis_server import RedisServer, one_and_others_long, running, server_programs
from store_calls import records, stored
from tls import certificate, tls_in_front

from torchserve_neuron_lstm.sessions.redis_store import RedisStore
from torchserve_neuron_lstm.sessions.settings import Limits, RedisSettings
from torchserve_neuron_lstm.sessions.store import (
    RecordUpdate,
    StoreFullError,
    StoreTotals,
    StoreUnavailableError,
    Written,
)

LIMITS = Limits(sessions=1000, bytes=100_000_000, idle_seconds=900.0)
PROGRAMS = server_programs()
OPTIONS = ("--appendonly", "yes", "--appendfsync", "always")

Start = Callable[..., RedisServer]
MakeStore = Callable[..., RedisStore]


@pytest.fixture(params=one_and_others_long(PROGRAMS))
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """A function that starts a server with some options."""
    with ExitStack() as servers:
        yield lambda *options: servers.enter_context(
            running(RedisServer(PROGRAMS[request.param], tmp_path, *OPTIONS, *options))
        )


@pytest.fixture
def store_on() -> Iterator[MakeStore]:
    """A function that makes a store for a server's address with some settings. It is closed in the end."""
    stores: list[RedisStore] = []

    def make(url: str, clock: Clock | None = None, limits: Limits = LIMITS, **settings: Any) -> RedisStore:
        # A busy machine is slow now and then.
        stores.append(RedisStore(RedisSettings(url, **({"timeout_seconds": 30.0} | settings)), "tagger", limits, clock))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def write(store: RedisStore, name: str, record: bytes) -> None:
    """Write a record in the place of the stored one."""
    found = stored(store, name)
    assert store.write([RecordUpdate(name, record, found and found.revision)]) == [Written()]


def read(store: RedisStore, name: str) -> bytes | None:
    """The stored record."""
    return records(store.read([name]))[0]


def test_a_server_that_was_killed_has_what_was_written_when_it_is_back(start: Start, store_on: MakeStore) -> None:
    """During the outage every call reports the error; afterwards the same store continues."""
    server = start()
    store = store_on(server.url)
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


def test_a_server_that_cannot_be_reached_is_told(store_on: MakeStore) -> None:
    """The error has its address; no error is raised before the first call."""
    with pytest.raises(StoreUnavailableError, match=r"the session store redis://127\.0\.0\.1:1/0 cannot be used"):
        store_on("redis://127.0.0.1:1").read(["a"])


def test_a_host_without_the_client_is_told_what_to_install(
    store_on: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this store needs the client."""
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StoreUnavailableError, match="need the package redis: pip install redis"):
        store_on("redis://127.0.0.1:1").read(["a"])


def test_a_connection_that_was_cut_meanwhile_is_made_again(start: Start, store_on: MakeStore) -> None:
    """Servers close connections that are idle for long."""
    server = start()
    store = store_on(server.url)
    write(store, "a", b"record")
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)

    assert store.write([RecordUpdate("b", b"record", None)]) == [Written()]
    assert read(store, "a") == b"record"


def test_a_write_whose_answer_was_lost_is_made_once(start: Start, store_on: MakeStore) -> None:
    """The write is sent again, and recognised as a repetition."""
    server = start()
    with lossy_way(server.port) as way:
        store = store_on(f"redis://127.0.0.1:{way.port}", Clock())
        write(store, "a", b"record")
        found = stored(store, "a")
        assert found is not None

        way.answers_to_lose = 1
        outcomes = store.write(
            [
                RecordUpdate("a", b"next", found.revision),
                RecordUpdate("b", b"new", None),
                RecordUpdate("c", b"", None, True),
            ]
        )

        assert outcomes == [Written()] * 3
        assert [read(store, name) for name in "abc"] == [b"next", b"new", b""]
        assert store.totals() == StoreTotals(2, 7, 0.0)
        way.answers_to_lose = 2
        with pytest.raises(StoreUnavailableError):
            store.write([RecordUpdate("a", b"unknown", None)])
        assert read(store, "a") == b"next"


def test_a_server_that_hangs_is_told_in_time(start: Start, store_on: MakeStore) -> None:
    """The store answers again after the server does."""
    server = start()
    store = store_on(server.url, timeout_seconds=0.2)
    write(store_on(server.url), "a", b"record")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError, match=r"it did not answer within 0\.2 seconds"):
            store.read(["a"])
    finally:
        os.kill(server.pid, signal.SIGCONT)

    store = store_on(server.url)
    assert read(store, "a") == b"record"


def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(start: Start, store_on: MakeStore) -> None:
    """An example is a failover."""
    server = start()
    store = store_on(server.url)
    write(store, "a", b"record")
    with server.client() as client:
        client.script_flush()

    write(store, "a", b"next")
    assert read(store, "a") == b"next"


def test_the_password_is_in_the_environment(start: Start, store_on: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong or missing password is refused, and is not shown."""
    server = start("--requirepass", "s3cret")
    monkeypatch.setenv("SESSIONS_PASSWORD", "s3cret")
    write(store_on(server.url, password_env="SESSIONS_PASSWORD"), "a", b"record")

    monkeypatch.setenv("SESSIONS_PASSWORD", "wr0ng")
    with pytest.raises(
        StoreUnavailableError, match="check the username and the password in SESSIONS_PASSWORD"
    ) as refusal:
        store_on(server.url, password_env="SESSIONS_PASSWORD").read(["a"])
    assert "wr0ng" not in str(refusal.value)
    monkeypatch.delenv("SESSIONS_PASSWORD")
    with pytest.raises(StoreUnavailableError, match=r"SESSIONS_PASSWORD, which holds .* password, is not set"):
        store_on(server.url, password_env="SESSIONS_PASSWORD").read(["a"])
    with pytest.raises(StoreUnavailableError, match="check the username and password_env"):
        store_on(server.url).read(["a"])


def test_a_user_needs_no_more_rights_than_these(
    start: Start, store_on: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rights are for the store's keys only."""
    server = start()
    commands = (
        "get mget set del getrange pttl pexpire zadd zrem zcard zcount zscore zrange zrangebyscore hget hset hdel"
    )
    rights = [f"+{command}" for command in f"{commands} hincrby time evalsha".split()]
    with server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "neuron", "on", ">s3cret", "~neuron-lstm:*", *rights, "+script|load", "+select"
        )
    monkeypatch.setenv("SESSIONS_PASSWORD", "s3cret")
    clock = Clock()
    store = store_on(server.url, clock, username="neuron", password_env="SESSIONS_PASSWORD")

    write(store, "a", b"record")
    write(store, "b", b"record")
    clock.now += 1000
    assert store.write([RecordUpdate("c", b"", None, ended=True)]) == [Written()]
    assert (store.expired(), store.totals().sessions) == (2, 0)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "neuron", "-mget")
    with pytest.raises(StoreUnavailableError, match="check the username and the password in SESSIONS_PASSWORD"):
        store.read(["a"])


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"url": "redis://user:s3cret@host"}, "^url: expected no user and no password"),
        ({"url": "redis://:s3cret@host:1/0"}, "^url: expected no user and no password"),
        ({"url": "redis://user@host"}, "^url: expected no user and no password"),
        ({"url": "http://host"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "host:6379"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": ""}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host/one"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host/-1"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host:0/0"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "rediss://host?ssl_cert_reqs=none"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host:70000"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://[::1"}, "^url: expected redis://HOST:PORT/DATABASE"),
        ({"url": "redis://host", "ca_file": "ca.pem"}, "^ca_file: expected none without TLS"),
        ({"url": "redis://host", "username": "user"}, "^password_env: is missing: a username needs"),
        ({"url": "redis://host/1", "cluster": True}, "^url: expected database 0 with cluster: true"),
        ({"url": "redis://host", "timeout_seconds": 0.0}, "^timeout_seconds: expected more than 0, got 0"),
        ({"url": "redis://host", "timeout_seconds": float("nan")}, "^timeout_seconds: expected more than 0, got nan"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], wrong: str) -> None:
    """The message says what to change, without the password."""
    with pytest.raises(ValueError, match=wrong) as refusal:
        RedisSettings(**settings)
    assert "s3cret" not in str(refusal.value)


def test_an_address_is_shown_whole() -> None:
    """The address is shown as it was parsed."""
    assert str(RedisSettings("redis://[::1]:7/3").server) == "redis://[::1]:7/3"
    assert str(RedisSettings("rediss://Host/").server) == "rediss://host:6379/0"


def test_tls_trusts_nobody_but_the_given_authority(start: Start, store_on: MakeStore, tmp_path: Path) -> None:
    """A certificate of another authority, one of another host, and no certificate are refused."""
    server = start()
    crt, key = certificate(tmp_path, "localhost")
    other_crt, other_key = certificate(tmp_path, "elsewhere.example")
    with tls_in_front(server.port, crt, key) as port:
        store = store_on(f"rediss://localhost:{port}", ca_file=str(crt))
        write(store, "a", bytes(50_000))
        assert read(store, "a") == bytes(50_000)
        with pytest.raises(StoreUnavailableError, match="IP address mismatch"):
            store_on(f"rediss://127.0.0.1:{port}", ca_file=str(crt)).read(["a"])
        for ca_file in (str(other_crt), None):
            with pytest.raises(StoreUnavailableError, match="certificate verify failed"):
                store_on(f"rediss://localhost:{port}", ca_file=ca_file).read(["a"])
        with pytest.raises(StoreUnavailableError):
            store_on(f"redis://localhost:{port}").read(["a"])
        with pytest.raises(StoreUnavailableError, match="No such file"):
            store_on(f"rediss://localhost:{port}", ca_file=str(tmp_path / "none.pem")).read(["a"])
    with (
        tls_in_front(server.port, other_crt, other_key) as port,
        pytest.raises(StoreUnavailableError, match="Hostname mismatch"),
    ):
        store_on(f"rediss://localhost:{port}", ca_file=str(other_crt)).read(["a"])


def test_a_server_without_memory_refuses_what_does_not_fit(start: Start, store_on: MakeStore) -> None:
    """A call is written whole or not at all; the store continues when there is space again."""
    server = start()
    store = store_on(server.url)
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

    with server.client() as client:
        client.config_set("maxmemory", 0)
    assert store.write([RecordUpdate(f"new {number}", bytes(6000), None) for number in range(100)]) == [Written()] * 100


def test_a_server_that_throws_sessions_away_is_warned_of(
    start: Start, store_on: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning is given once, and only if the server can remove sessions."""
    server = start("--maxmemory", "100mb")
    with caplog.at_level(logging.WARNING):
        store_on(server.url).read(["a"])
        assert caplog.messages == []
        with server.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        store = store_on(server.url)
        store.read(["a"])
        store.read(["a"])

    (message,) = caplog.messages
    assert message == (
        f"the session store {server.url}/0 has maxmemory-policy allkeys-lru: it removes open sessions when its memory "
        f"is full; set it to noeviction, and new sessions are refused instead"
    )


def test_records_that_the_server_has_removed_are_counted_right(start: Start, store_on: MakeStore) -> None:
    """This holds whether or not the sessions come again."""
    server, clock = start(), Clock()
    store = store_on(server.url, clock, Limits(3, 24, 900.0))
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


def test_everything_is_gone_from_the_server_in_the_end(start: Start, store_on: MakeStore) -> None:
    """The server expires the records first, and then their counters."""
    server = start()
    short, long = Limits(9, 999, 0.1, 0.1), Limits(9, 999, 100.0, 10.0)
    write(store_on(server.url, None, long), "a", b"record")
    with server.client() as client:
        assert {299 < client.pttl(key) / 1000 <= 302 for key in client.scan_iter()} == {True}
        write(store_on(server.url, None, short), "b", b"record")
        assert sorted(client.pttl(key) > 3000 for key in client.scan_iter()) == [False, True, True, True]
        client.flushall()
        write(store_on(server.url, None, short), "b", b"record")
        deadline = time.monotonic() + 30
        while client.dbsize() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert client.dbsize() == 0


def test_time_is_the_servers(start: Start, store_on: MakeStore) -> None:
    """The server's clock is the default."""
    server = start()
    store = store_on(server.url, None, Limits(9, 999, 1.5, 0.1))
    write(store, "a", b"record")
    assert read(store, "a") == b"record"
    time.sleep(1.6)

    assert read(store, "a") is None
    assert store.totals() == StoreTotals(0, 6, None)
    assert store.write([RecordUpdate("a", b"anew", None)]) == [Written()]
    assert store.expired() == 1


def test_the_server_holds_no_id_and_all_keys_in_one_slot(start: Start, store_on: MakeStore) -> None:
    """A copy of the data gives no session, and a cluster keeps all keys of a model on one node."""
    server = start()
    write(store_on(server.url), "the-id-of-somebody", b"the record of somebody")
    with server.client() as client:
        keys = list(client.scan_iter())

    assert len(keys) == 3
    assert {key.partition(b"}")[0] for key in keys} == {b"neuron-lstm:{tagger"}
    assert not [key for key in keys if b"the-id-of" in key]


def test_a_key_that_is_none_of_ours_is_no_session(start: Start, store_on: MakeStore) -> None:
    """This holds for any bytes; a session can begin in its place."""
    server = start()
    store = store_on(server.url)
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
