from pathlib import Path

import pytest
from memory_store import Clock
from redis_cluster import ask
from redis_server import RedisServer
from store_calls import read, write
from tls import certificate, tls_in_front

from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoreUnavailableError, Written

from .redis_stores import RIGHTS, MakeStore, StartServer


def test_the_password_is_in_the_environment(
    start_server: StartServer, store_on_server: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server("--requirepass", "s3cret")
    monkeypatch.setenv("SESSIONS_PASSWORD", "s3cret")
    write(store_on_server(server.url, password_env="SESSIONS_PASSWORD"), "a", b"record")

    monkeypatch.setenv("SESSIONS_PASSWORD", "wr0ng")
    with pytest.raises(
        StoreUnavailableError, match="check the username and the password in SESSIONS_PASSWORD"
    ) as refusal:
        store_on_server(server.url, password_env="SESSIONS_PASSWORD").read(["a"])
    assert "wr0ng" not in str(refusal.value)
    monkeypatch.delenv("SESSIONS_PASSWORD")
    with pytest.raises(StoreUnavailableError, match=r"SESSIONS_PASSWORD, which holds .* password, is not set"):
        store_on_server(server.url, password_env="SESSIONS_PASSWORD").read(["a"])
    with pytest.raises(StoreUnavailableError, match="check the username and password_env"):
        store_on_server(server.url).read(["a"])


def test_a_user_needs_no_more_rights_than_these(
    server: RedisServer, store_on_server: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(server, "ACL", "SETUSER", "neuron", "on", ">s3cret", "~neuron-lstm:*", *RIGHTS)
    monkeypatch.setenv("SESSIONS_PASSWORD", "s3cret")
    clock = Clock()
    store = store_on_server(server.url, clock, username="neuron", password_env="SESSIONS_PASSWORD")

    write(store, "a", b"record")
    write(store, "b", b"record")
    clock.now += 1000
    assert store.write([RecordUpdate("c", b"", None, ended=True)]) == [Written()]
    assert (store.expired(), store.totals().sessions) == (2, 0)
    ask(server, "ACL", "SETUSER", "neuron", "-mget")
    with pytest.raises(StoreUnavailableError, match="check the username and the password in SESSIONS_PASSWORD"):
        store.read(["a"])


def test_tls_trusts_the_given_authority_alone(server: RedisServer, store_on_server: MakeStore, tmp_path: Path) -> None:
    crt, key = certificate(tmp_path, "localhost")
    other_crt, other_key = certificate(tmp_path, "elsewhere.example")
    with tls_in_front(server.port, crt, key) as port:
        store = store_on_server(f"rediss://localhost:{port}", ca_file=str(crt))
        write(store, "a", bytes(50_000))
        assert read(store, "a") == bytes(50_000)
        with pytest.raises(StoreUnavailableError, match="IP address mismatch"):
            store_on_server(f"rediss://127.0.0.1:{port}", ca_file=str(crt)).read(["a"])
        for ca_file in (str(other_crt), None):
            with pytest.raises(StoreUnavailableError, match="certificate verify failed"):
                store_on_server(f"rediss://localhost:{port}", ca_file=ca_file).read(["a"])
        with pytest.raises(StoreUnavailableError):
            store_on_server(f"redis://localhost:{port}").read(["a"])
        with pytest.raises(StoreUnavailableError, match="No such file"):
            store_on_server(f"rediss://localhost:{port}", ca_file=str(tmp_path / "none.pem")).read(["a"])
    with (
        tls_in_front(server.port, other_crt, other_key) as port,
        pytest.raises(StoreUnavailableError, match="Hostname mismatch"),
    ):
        store_on_server(f"rediss://localhost:{port}", ca_file=str(other_crt)).read(["a"])
