"""Opening of a model's sessions, as its settings and the environment say; sessions in tokens that clients hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...config.manifest import Manifest
from ...sessions.session import Reply, Session
from ...sessions.settings import SessionSettings
from ...sessions.store import Store
from ...sessions.token import (
    InvalidTokenError,
    SigningKeyError,
    TokenState,
    sign_token,
    signing_keys_from_environment,
    signing_keys_from_file,
    token_model,
    verify_token,
)
from ..responses import RequestError
from .state import LoadedSession, RevisionConflict, SessionKey, SessionSource, SessionUpdate, StateSerializer
from .store_sessions import SessionCache, StoreSessions

DIRECTORY_VARIABLE = "NEURON_LSTM_SESSIONS"
"""The environment variable that names another directory for sessions on disk."""


def open_sessions(manifest: Manifest, model: str, environment: Mapping[str, str]) -> SessionSource | None:
    """Open the sessions of `model`; None if the archive serves no sessions.

    A store is opened with the first request, so that a server starts before its store does.

    Raises `RuntimeError`: there is no signing key for session tokens.
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
    """
    configured = environment.get(DIRECTORY_VARIABLE) or settings.directory
    if configured:
        return Path(configured)
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


@dataclass(frozen=True)
class TokenSessions:
    """Sessions in signed tokens: the client gets one with a response, and sends it with the next request."""

    keys: tuple[bytes, ...] = field(repr=False)
    """The key that signs, and others that verify too."""
    state_id: bytes
    """The identity of the models that can resume each other's sessions."""
    state_bytes: int
    name: str
    """The name under which the model is served."""
    seconds: float
    """Time after which a token expires."""
    clock: Callable[[], float] = time.time
    """The wall clock, the only one that hosts have in common. It removes nothing."""

    def load(self, keys: Sequence[SessionKey]) -> list[LoadedSession | RequestError]:
        """Verify each token and return its session; without a token there is none."""
        return [self._verified(key.token) for key in keys]

    def token(self, steps: int, state: bytes) -> str | None:
        """Return the session as a signed token."""
        model = token_model(self.state_id, self.name)
        return sign_token(TokenState(steps, model, state, int(self.clock())), self.keys[0])

    def save(self, updates: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Save nothing: the client has the token."""
        return [None] * len(updates)

    def expired(self) -> int:
        """Return 0: nothing is stored."""
        return 0

    def available(self) -> None:
        """Return None: there is no store."""

    def _verified(self, token: str | None) -> LoadedSession | RequestError:
        if token is None:
            return LoadedSession(None)
        try:
            state = verify_token(token, self.keys, self.state_bytes)
        except InvalidTokenError as error:
            return RequestError("InvalidToken", str(error))
        if state.model != token_model(self.state_id, self.name):
            return RequestError("InvalidToken", "the token is of another model, whose sessions this one cannot resume")
        # A token from the future is refused too: a clock that was ahead would make tokens that live longer.
        if abs(self.clock() - state.issued) > self.seconds:
            return RequestError(
                "SessionUnknown", "the session token has expired; send `start` to start another session"
            )
        # Replies are not stored: a request sent again comes with the token that it first came with.
        return LoadedSession(Session(state.steps, -1, b"", Reply(b"", ""), state.state, self.state_id))
