import stat
from dataclasses import replace
from pathlib import Path

import pytest
from streaming_archive import streaming_manifest

from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.config.streaming import StreamingConfig
from torchserve_neuron_lstm.handlers.streaming import open_sessions as opening
from torchserve_neuron_lstm.handlers.streaming.open_sessions import open_sessions, session_directory
from torchserve_neuron_lstm.handlers.streaming.state import LoadedSession, SessionKey
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.handlers.streaming.token_sessions import TokenSessions
from torchserve_neuron_lstm.sessions.redis.store import RedisStore
from torchserve_neuron_lstm.sessions.settings import SessionSettings
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore

STATE, KEY = "0" * 32, "ab" * 32


def settings(**given: object) -> SessionSettings:
    return StreamingConfig.model_validate(given).settings(STATE)


def manifest(**given: object) -> Manifest:
    return streaming_manifest(settings(**given))


@pytest.mark.parametrize(
    ("given", "environment", "directory"),
    [
        ("/settings", {"NEURON_LSTM_SESSIONS": "/env", "XDG_STATE_HOME": "/state"}, Path("/env")),
        ("/settings", {"NEURON_LSTM_SESSIONS": "", "XDG_STATE_HOME": "/state"}, Path("/settings")),
        ("/settings", {}, Path("/settings")),
        (None, {"XDG_STATE_HOME": "/state"}, Path("/state/torchserve-neuron-lstm/sessions")),
        (None, {}, Path.home() / ".local/state/torchserve-neuron-lstm/sessions"),
    ],
)
def test_the_environment_goes_before_the_settings_and_these_before_the_users_own_state(
    given: str | None, environment: dict[str, str], directory: Path
) -> None:
    """An operator need not package again."""
    assert session_directory(settings(directory=given) if given else settings(), environment) == directory


def test_a_model_that_does_not_stream_has_no_sessions() -> None:
    assert open_sessions(streaming_manifest(None), "tagger", {}) is None


def test_a_store_is_touched_by_the_first_piece_alone(tmp_path: Path) -> None:
    """A server starts even if its store is not reachable yet."""
    sessions = open_sessions(manifest(), "tagger", {"NEURON_LSTM_SESSIONS": str(tmp_path / "kept")})

    assert isinstance(sessions, StoreSessions)
    assert not (tmp_path / "kept").exists()
    assert sessions.load([SessionKey("a", None)]) == [LoadedSession(None)]
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "kept" / "tagger.sessions").stat().st_mode) == 0o600


def test_a_server_that_is_not_there_is_no_reason_not_to_start() -> None:
    given = settings(store="redis", redis={"url": "redis://127.0.0.1:1/0", "password_env": "NOT_SET"})

    assert isinstance(opening.open_store(given, "tagger", {}), RedisStore)
    assert isinstance(opening.open_store(settings(), "tagger", {}), SqliteStore)


def test_all_workers_of_a_host_sign_with_one_key(tmp_path: Path) -> None:
    environment = {"NEURON_LSTM_SESSIONS": str(tmp_path / "kept")}
    first, second = (open_sessions(manifest(store="client"), "tagger", environment) for _ in range(2))

    assert isinstance(first, TokenSessions)
    assert isinstance(second, TokenSessions)
    assert first.keys == second.keys
    assert stat.S_IMODE((tmp_path / "kept" / "token.key").stat().st_mode) == 0o600
    assert first.keys[0].hex() not in repr(first)
    assert "keys" not in repr(first)


def test_a_key_of_the_environment_is_that_of_all_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SESSIONS_KEY", KEY)
    environment = {"NEURON_LSTM_SESSIONS": str(tmp_path / "kept")}
    sessions = open_sessions(manifest(store="client", key_env="SESSIONS_KEY"), "tagger", environment)

    assert isinstance(sessions, TokenSessions)
    assert sessions.keys == (bytes.fromhex(KEY),)
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("key", [None, "", "ab" * 31, "not hex digits" * 5])
def test_without_a_key_the_archive_is_not_served(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.delenv("SESSIONS_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("SESSIONS_KEY", key)
    with pytest.raises(RuntimeError, match="SESSIONS_KEY") as refused:
        open_sessions(manifest(store="client", key_env="SESSIONS_KEY"), "tagger", {})

    assert "openssl rand -hex 32" in str(refused.value)
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize("environment", [{}, {"NEURON_LSTM_SESSIONS": "./kept"}])
def test_a_relative_directory_is_refused(environment: dict[str, str]) -> None:
    """It would be in the folder of the unpacked archive, which then holds a file that is not in its list."""
    with pytest.raises(RuntimeError, match=r"expected an absolute path, got '(\./)?kept'"):
        session_directory(replace(settings(), directory="kept"), environment)
