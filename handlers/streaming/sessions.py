"""Sessions of one model, where they lie between their pieces: in a store, or with the client."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from ...config.manifest import Manifest
from ...sessions.redis_store import RedisStore
from ...sessions.session import CorruptRecordError, Reply, Session, decode_session, encode_session
from ...sessions.settings import SessionSettings
from ...sessions.sqlite_store import SqliteStore
from ...sessions.store import (
    Conflict,
    LimitExceeded,
    RecordUpdate,
    Store,
    StoredRecord,
    StoreFullError,
    StoreUnavailableError,
)
from ...sessions.token import (
    InvalidTokenError,
    SigningKeyError,
    TokenState,
    sign_token,
    signing_key_from_environment,
    signing_key_from_file,
    verify_token,
)
from ..responses import RequestError
from .state import StateSerializer

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0
"""After which a client may ask again a store that could not be used."""


class SessionKey(NamedTuple):
    """A session that a piece goes on from."""

    id: str
    token: str | None


class LoadedSession(NamedTuple):
    """What is known of it."""

    session: Session | None
    revision: int | None = None


class SessionUpdate(NamedTuple):
    """A session after a piece, to be kept in the place of what was known."""

    id: str
    session: Session
    known: LoadedSession


class RevisionConflict(NamedTuple):
    """Another piece of the session was applied meanwhile; this one is yet to be decided on again."""


class Sessions(Protocol):
    """The sessions of one model."""

    def find(self, asked: Sequence[SessionKey]) -> list[LoadedSession | RequestError]:
        """What is known of each; the ids are different."""

    def token(self, steps: int, state: bytes) -> str | None:
        """What the client is to send with its next piece, beside the id; None: nothing."""

    def keep(self, sessions: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Keep each, or say why it is not kept; the ids are different."""

    def expired(self) -> int:
        """How many idle sessions were removed since the last call."""


@dataclass(frozen=True)
class StoreSessions:
    """In a store that all workers share."""

    store: Store

    def find(self, asked: Sequence[SessionKey]) -> list[LoadedSession | RequestError]:
        """What is known of each."""
        try:
            records = self.store.read([one.id for one in asked])
        except StoreUnavailableError as error:
            return [_unavailable(error)] * len(asked)
        return [LoadedSession(None) if record is None else _read(record) for record in records]

    def token(self, steps: int, state: bytes) -> str | None:
        """Nothing: the id is enough."""
        return None

    def keep(self, sessions: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Keep each whose record is still the one that was known."""
        changes = [
            RecordUpdate(one.id, encode_session(one.session), one.known.revision, one.session.ended) for one in sessions
        ]
        try:
            outcomes = self.store.write(changes)
        except StoreUnavailableError as error:
            return [_unavailable(error)] * len(sessions)
        return [_refused(outcome) for outcome in outcomes]

    def expired(self) -> int:
        """As the store counts."""
        return self.store.expired()


@dataclass(frozen=True)
class TokenSessions:
    """With the client, who gets each session sealed and sends it with the next piece."""

    key: bytes = field(repr=False)
    model: bytes
    state_bytes: int

    def find(self, asked: Sequence[SessionKey]) -> list[LoadedSession | RequestError]:
        """What each token holds; without one there is nothing to go on from."""
        return [self._open(one.token) for one in asked]

    def token(self, steps: int, state: bytes) -> str | None:
        """The session, sealed."""
        return sign_token(TokenState(steps, self.model, state), self.key)

    def keep(self, sessions: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Nothing is kept."""
        return [None] * len(sessions)

    def expired(self) -> int:
        """None."""
        return 0

    def _open(self, token: str | None) -> LoadedSession | RequestError:
        if token is None:
            return LoadedSession(None)
        try:
            found = verify_token(token, self.key, self.state_bytes)
        except InvalidTokenError as error:
            return RequestError(400, "InvalidToken", str(error))
        if found.model != self.model:
            return RequestError(400, "InvalidToken", "the token is of a model that this one cannot go on from")
        # Whatever was answered before, the client holds: a piece sent again comes with the token it came with.
        return LoadedSession(Session(found.steps, -1, b"", Reply(b"", ""), found.state, found.model))


def _read(found: StoredRecord) -> LoadedSession | RequestError:
    try:
        return LoadedSession(decode_session(found.record), found.revision)
    except CorruptRecordError as error:
        _log.error("a session cannot go on: %s", error)
        return RequestError(500, "SessionDamaged", "what was kept of this session is damaged: begin another")


def _refused(outcome: object) -> RevisionConflict | RequestError | None:
    if isinstance(outcome, Conflict):
        return RevisionConflict()
    if isinstance(outcome, LimitExceeded):
        message = f"no further session can begin: there are {outcome.limit}, which is the limit"
        return RequestError(429, "TooManySessions", message, max(1.0, outcome.retry_after))
    return None


def _unavailable(error: StoreUnavailableError) -> RequestError:
    _log.error("%s", error)
    if isinstance(error, StoreFullError):
        return RequestError(507, "StoreFull", "there is no room to keep sessions; the cause is in the log", 10.0)
    message = "sessions cannot be kept at the moment; the cause is in the server's log. Send the piece again"
    return RequestError(503, "StoreUnavailable", message, _RETRY_SECONDS)


DIRECTORY_VARIABLE = "NEURON_LSTM_SESSIONS"
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
        state_bytes = StateSerializer(manifest.carried).size
        return TokenSessions(_key(settings, environment), bytes.fromhex(settings.state), state_bytes)
    return StoreSessions(open_store(settings, model, environment))


def open_store(settings: SessionSettings, model: str, environment: Mapping[str, str]) -> Store:
    """The store that settings name, on disk or on a server."""
    if settings.redis is None:
        return SqliteStore(session_directory(settings, environment), model, settings.limits)
    return RedisStore(settings.redis, model, settings.limits)


def session_directory(settings: SessionSettings, environment: Mapping[str, str]) -> Path:
    """The folder of sessions on disk: as the environment says, or the settings, or else in the user's own state.

    >>> settings = SessionSettings("disk", state="0" * 32)
    >>> session_directory(settings, {"XDG_STATE_HOME": "/var/state"}).as_posix()
    '/var/state/torchserve-neuron-lstm/sessions'
    """
    named = environment.get(DIRECTORY_VARIABLE) or settings.directory
    if named:
        return Path(named)
    state = environment.get("XDG_STATE_HOME")
    home = Path(state) if state else Path.home() / ".local" / "state"
    return home / "torchserve-neuron-lstm" / "sessions"


def _key(settings: SessionSettings, environment: Mapping[str, str]) -> bytes:
    try:
        if settings.key_env is not None:
            return signing_key_from_environment(settings.key_env)
        return signing_key_from_file(session_directory(settings, environment) / "token.key")
    except SigningKeyError as error:
        raise RuntimeError(str(error)) from error
