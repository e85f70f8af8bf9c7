"""A Redis server that is gone, hangs or was restarted: no write is lost or made twice."""

from __future__ import annotations

import os
import signal

import pytest
from lossy import lossy_way
from memory_store import Clock
from store_calls import read, stored, write

from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreTotals, StoreUnavailableError, Written

from .redis_stores import MakeStore, StartServer


def test_a_server_that_was_killed_has_what_was_written_when_it_is_back(
    start_server: StartServer, store_on_server: MakeStore
) -> None:
    """During the outage every call reports the error; afterwards the same store continues."""
    server = start_server()
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


def test_a_server_that_cannot_be_reached_is_told(store_on_server: MakeStore) -> None:
    """The error has its address; no error is raised before the first call."""
    with pytest.raises(StoreUnavailableError, match=r"the session store redis://127\.0\.0\.1:1/0 cannot be used"):
        store_on_server("redis://127.0.0.1:1").read(["a"])


def test_a_connection_that_was_cut_meanwhile_is_made_again(
    start_server: StartServer, store_on_server: MakeStore
) -> None:
    """Servers close connections that are idle for long."""
    server = start_server()
    store = store_on_server(server.url)
    write(store, "a", b"record")
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)

    assert store.write([RecordUpdate("b", b"record", None)]) == [Written()]
    assert read(store, "a") == b"record"


def test_a_write_whose_answer_was_lost_is_made_once(start_server: StartServer, store_on_server: MakeStore) -> None:
    """The write is sent again, and recognised as a repetition."""
    server = start_server()
    with lossy_way(server.port) as way:
        store = store_on_server(f"redis://127.0.0.1:{way.port}", Clock())
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


def test_a_server_that_hangs_is_told_in_time(start_server: StartServer, store_on_server: MakeStore) -> None:
    """The store answers again after the server does."""
    server = start_server()
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


def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(
    start_server: StartServer, store_on_server: MakeStore
) -> None:
    """An example is a failover."""
    server = start_server()
    store = store_on_server(server.url)
    write(store, "a", b"record")
    with server.client() as client:
        client.script_flush()

    write(store, "a", b"next")
    assert read(store, "a") == b"next"
