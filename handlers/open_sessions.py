"""The sessions of an archive, as its manifest wants them kept on this host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..config.manifest import Manifest
from ..config.session_settings import SessionSettings
from ..sessions.disk import DiskStore
from ..sessions.redis import RedisStore
from ..sessions.redis_client import RedisSettings
from ..sessions.store import Limits, Store
from ..sessions.token_key import NoKey, key_of_environment, key_of_file
from .kept_sessions import CarriedSessions, Sessions, StoredSessions
from .state_bytes import StateBytes

DIRECTORY = "NEURON_LSTM_SESSIONS"
"""The environment variable that names another folder for sessions on disk."""


def open_sessions(manifest: Manifest, model: str, environment: Mapping[str, str]) -> Sessions | None:
    """Where the sessions of `model` are kept; None for a model that is not served as a stream.

    A store is opened with the first piece, and so a server starts although its store is not there yet.

    Raises:
        RuntimeError: there is no key to seal sessions with.
    """
    settings = manifest.streaming
    if settings is None:
        return None
    if settings.store == "client":
        state_bytes = StateBytes(manifest.carried).size
        return CarriedSessions(_key(settings, environment), bytes.fromhex(settings.state), state_bytes)
    return StoredSessions(open_store(settings, model, environment))


def open_store(settings: SessionSettings, model: str, environment: Mapping[str, str]) -> Store:
    """The store that settings name, on disk or on a server."""
    limits = Limits(settings.max_sessions, settings.max_bytes, settings.idle_seconds)
    if settings.redis is None:
        return DiskStore(session_directory(settings, environment), model, limits)
    server = settings.redis
    return RedisStore(
        RedisSettings(
            server.url,
            username=server.username,
            password_env=server.password_env,
            ca_file=server.ca_file,
            timeout_seconds=server.timeout_seconds,
        ),
        model,
        limits,
    )


def session_directory(settings: SessionSettings, environment: Mapping[str, str]) -> Path:
    """The folder of sessions on disk: as the environment says, or the settings, or else in the user's own state.

    >>> from torchserve_neuron_lstm.config.session_settings import Fields
    >>> names = Fields("id", "start", "end", "step", "token")
    >>> settings = SessionSettings("disk", "0" * 32, None, None, None, 600.0, 100, 1000, names)
    >>> session_directory(settings, {"XDG_STATE_HOME": "/var/state"}).as_posix()
    '/var/state/torchserve-neuron-lstm/sessions'
    """
    named = environment.get(DIRECTORY) or settings.directory
    if named:
        return Path(named)
    state = environment.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "torchserve-neuron-lstm" / "sessions"


def _key(settings: SessionSettings, environment: Mapping[str, str]) -> bytes:
    try:
        if settings.key_env is not None:
            return key_of_environment(settings.key_env)
        return key_of_file(session_directory(settings, environment) / "token.key")
    except NoKey as error:
        raise RuntimeError(str(error)) from error
