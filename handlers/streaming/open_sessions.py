"""Opening of a model's sessions, as its settings and the environment say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...config.manifest import Manifest
from ...sessions.settings import SessionSettings
from ...sessions.store import Store
from ...sessions.token import SigningKeyError, signing_keys_from_environment, signing_keys_from_file
from .state import SessionSource, StateSerializer
from .store_sessions import SessionCache, StoreSessions
from .token_sessions import TokenSessions

DIRECTORY_VARIABLE = "NEURON_LSTM_SESSIONS"
"""The environment variable that names another directory for sessions on disk."""


def open_sessions(manifest: Manifest, model: str, environment: Mapping[str, str]) -> SessionSource | None:
    """Open the sessions of `model`; None if the archive serves no sessions.

    A store is opened with the first request, so that a server starts before its store does.

    Raises `RuntimeError`: there is no signing key for session tokens, or the directory's path is relative.
    """
    settings = manifest.streaming
    if settings is None:
        return None
    if settings.store == "client":
        state_bytes = StateSerializer(manifest.carried).size
        keys = _signing_keys(settings, environment)
        return TokenSessions(keys, bytes.fromhex(settings.state), state_bytes, model, settings.token_seconds)
    cache = SessionCache(seconds=settings.limits.idle_seconds)
    return StoreSessions(open_store(settings, model, environment), cache)


def open_store(settings: SessionSettings, model: str, environment: Mapping[str, str]) -> Store:
    """Open the store that the settings name, on disk or on a server.

    Only archives that name a store contain its files.

    Raises `RuntimeError`: the directory's path is relative.
    """
    if settings.redis is None:
        from ...sessions.sqlite.store import SqliteStore

        return SqliteStore(session_directory(settings, environment), model, settings.limits)
    from ...sessions.redis.store import RedisStore

    return RedisStore(settings.redis, model, settings.limits)


def session_directory(settings: SessionSettings, environment: Mapping[str, str]) -> Path:
    """Return the directory of sessions on disk.

    It is that of the environment, else of the settings, else one in the user's state directory.

    >>> settings = SessionSettings("disk", state="0" * 32)
    >>> session_directory(settings, {"XDG_STATE_HOME": "/var/state"}).as_posix()
    '/var/state/torchserve-neuron-lstm/sessions'

    Raises `RuntimeError`: it is a relative path.
    """
    configured = environment.get(DIRECTORY_VARIABLE) or settings.directory
    if configured:
        directory = Path(configured)
        if not directory.is_absolute():
            raise RuntimeError(  # a server unpacks archives into its working directory, and removes them
                f"the directory of sessions ({DIRECTORY_VARIABLE}, or `directory` under `streaming`): expected an "
                f"absolute path, got {configured!r}"
            )
        return directory
    state = environment.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "torchserve-neuron-lstm" / "sessions"


def _signing_keys(settings: SessionSettings, environment: Mapping[str, str]) -> tuple[bytes, ...]:
    try:
        if settings.key_env is not None:
            return signing_keys_from_environment(settings.key_env)
        return signing_keys_from_file(session_directory(settings, environment) / "token.key")
    except SigningKeyError as error:
        raise RuntimeError(str(error)) from error
