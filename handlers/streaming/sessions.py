"""Sessions of one model between their requests: in a store, or in signed tokens that clients hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from ...config.manifest import Manifest
from ...sessions.session import CorruptRecordError, Reply, Session, decode_session, encode_session
from ...sessions.settings import SessionSettings
from ...sessions.store import (
    Conflict,
    LimitExceeded,
    RecordUpdate,
    Store,
    StoredRecord,
    StoreFullError,
    StoreUnavailableError,
    Written,
)
from ...sessions.token import InvalidTokenError, TokenState, sign_token, token_model, verify_token
from ...sessions.token_key import SigningKeyError, signing_keys_from_environment, signing_keys_from_file
from ..responses import RequestError
from .known_sessions import KnownSession, KnownSessions
from .state import StateSerializer

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0
"""Seconds after which a client may try again when the store is unavailable."""


class SessionKey(NamedTuple):
    """The id and token by which a request names its session."""

    id: str
    token: str | None


class LoadedSession(NamedTuple):
    """A session as it was loaded; None if there is none."""

    session: Session | None
    revision: int | None = None
    damaged: bool = False
    """Whether there is a record that cannot be read: a start replaces it."""


class SessionUpdate(NamedTuple):
    """A session after a request, and the loaded one that it replaces."""

    id: str
    session: Session
    loaded: LoadedSession
    has_own_id: bool = True
    """Whether the id is the client's. Another one is unconfirmed until the client uses it."""
    client: str | None = None
    """The client, where the host names it."""

    @property
    def starts(self) -> bool:
        """Whether the session starts with the request."""
        return self.loaded.session is None


class RevisionConflict(NamedTuple):
    """Another request of the session was applied meanwhile: the decision on this one must be made again."""


class Sessions(Protocol):
    """The sessions of one model."""

    def load(self, keys: Sequence[SessionKey]) -> list[LoadedSession | RequestError]:
        """Load the session of each key; the ids are different."""

    def token(self, steps: int, state: bytes) -> str | None:
        """Return the token that the client sends with its next request; None: the id is enough."""

    def save(self, updates: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Save each session, or return why it is not saved; the ids are different."""

    def expired(self) -> int:
        """Return the number of idle sessions removed since the last call."""

    def available(self) -> bool | None:
        """Whether sessions can be read and written now; None: there is no store."""


@dataclass(frozen=True)
class StoreSessions:
    """Sessions in a store that all workers share."""

    store: Store
    known: KnownSessions = field(default_factory=KnownSessions)

    def load(self, keys: Sequence[SessionKey]) -> list[LoadedSession | RequestError]:
        """Read the record of each session."""
        ids = [key.id for key in keys]
        known = self.known.find(ids)
        try:
            records = self.store.read(ids, {id: one.revision for id, one in known.items()})  # noqa: A001 - the standard term
        except StoreUnavailableError as error:
            return [_unavailable(error)] * len(keys)
        refused = _refusals(records)
        return [
            LoadedSession(one.session, record.revision)
            if isinstance(record, StoredRecord) and (one := known.get(id)) and one.revision == record.revision
            else refused[record]
            if isinstance(record, StoreUnavailableError)
            else _loaded(record)
            for id, record in zip(ids, records)  # noqa: A001 - the standard term
        ]

    def token(self, steps: int, state: bytes) -> str | None:
        """Return None: the id is enough."""
        return None

    def save(self, updates: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Write each session whose record is still the loaded one."""
        sessions = [one.session if one.has_own_id or not one.starts else _stored(one.session) for one in updates]
        changes = [*map(_record_update, updates, sessions)]
        try:
            outcomes = self.store.write(changes)
        except StoreUnavailableError as error:
            return [_unavailable(error)] * len(updates)
        known = map(_known, changes, sessions, outcomes)
        self.known.keep(dict(zip([one.id for one in changes], known)))
        if {*map(type, outcomes)} == {Written}:
            return [None] * len(updates)
        refused = _refusals(outcomes)
        return [
            refused[outcome] if isinstance(outcome, StoreUnavailableError) else _write_refusal(update, outcome)
            for update, outcome in zip(updates, outcomes)
        ]

    def expired(self) -> int:
        """Return the store's count."""
        return self.store.expired()

    def available(self) -> bool:
        """Whether the store takes a write, one of no session.

        One server of several is enough: the sessions of the others get 503, and a host less would not help them.
        """
        try:
            self.store.write([])
        except StoreUnavailableError as error:
            _log.error("the model is not ready: %s", error)
            return False
        return True


@dataclass(frozen=True)
class TokenSessions:
    """Sessions in signed tokens, which the client receives with a response and sends with its next
    request.
    """

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
            found = verify_token(token, self.keys, self.state_bytes)
        except InvalidTokenError as error:
            return RequestError("InvalidToken", str(error))
        # A token of the first version has no name and no time: it is valid as long as its key.
        model = self.state_id if found.issued is None else token_model(self.state_id, self.name)
        if found.model != model:
            return RequestError("InvalidToken", "the token is of another model, whose sessions this one cannot resume")
        # Not before its time either: a clock that was ahead makes no token that lives much longer.
        if found.issued is not None and abs(self.clock() - found.issued) > self.seconds:
            return RequestError(
                "SessionUnknown", "the session token has expired; send `start` to start another session"
            )
        # Replies are not stored: a request sent again comes with the token that it first came with.
        return LoadedSession(Session(found.steps, -1, b"", Reply(b"", ""), found.state, self.state_id))


def _stored(session: Session) -> Session:
    """Return a session without the response that has its id: nobody else can repeat its request."""
    return session._replace(last_digest=b"", last_reply=Reply(b"", ""))


def _record_update(update: SessionUpdate, session: Session) -> RecordUpdate:
    (before, revision, _), record = update.loaded, encode_session(session)
    if before is not None:
        return RecordUpdate(update.id, record, revision, session.ended)
    return RecordUpdate(update.id, record, revision, session.ended, not update.has_own_id, update.client)


def _known(change: RecordUpdate, session: Session, outcome: object) -> KnownSession | None:
    revision = outcome.revision if isinstance(outcome, Written) else None
    return None if revision is None else KnownSession(revision, session, len(change.record))


def _loaded(found: StoredRecord | None) -> LoadedSession:
    if found is None:
        return LoadedSession(None)
    try:
        return LoadedSession(decode_session(found.record), found.revision)
    except CorruptRecordError as error:
        _log.error("a session cannot be resumed: %s", error)
        return LoadedSession(None, found.revision, damaged=True)


def _write_refusal(update: SessionUpdate, outcome: object) -> RevisionConflict | RequestError | None:
    if isinstance(outcome, Conflict):
        return RevisionConflict()
    if isinstance(outcome, LimitExceeded):
        wait = max(1.0, outcome.retry_after)
        if update.starts:
            message = f"no further session can start: the limit of {outcome.limit} is reached"
            return RequestError("TooManySessions", message, wait)
        message = f"the session cannot store more: the limit of {outcome.limit} is reached; send a shorter request"
        return RequestError("StoreFull", message, wait)
    return None


def _refusals(found: Sequence[object]) -> dict[StoreUnavailableError, RequestError]:
    """Return the refusal for each error; those of one server are one, which is logged once."""
    errors = dict.fromkeys(one for one in found if isinstance(one, StoreUnavailableError))
    return {error: _unavailable(error) for error in errors}


def _unavailable(error: StoreUnavailableError) -> RequestError:
    _log.error("%s", error)
    if isinstance(error, StoreFullError):
        return RequestError("StoreFull", "there is no space to store sessions; the cause is in the server's log", 10.0)
    message = "sessions cannot be stored at the moment; the cause is in the server's log. Send the request again"
    return RequestError("StoreUnavailable", message, _RETRY_SECONDS)


DIRECTORY_VARIABLE = "NEURON_LSTM_SESSIONS"
"""The environment variable that names another directory for sessions on disk."""


def open_sessions(manifest: Manifest, model: str, environment: Mapping[str, str]) -> Sessions | None:
    """Open the sessions of `model`; None if the archive serves no sessions.

    A store is opened with the first request, so that a server starts before its store does.

    Raises:
        RuntimeError: there is no signing key for session tokens.
    """
    settings = manifest.streaming
    if settings is None:
        return None
    if settings.store == "client":
        state_bytes = StateSerializer(manifest.carried).size
        keys = _signing_keys(settings, environment)
        return TokenSessions(keys, bytes.fromhex(settings.state), state_bytes, model, settings.token_seconds)
    return StoreSessions(open_store(settings, model, environment))


def open_store(settings: SessionSettings, model: str, environment: Mapping[str, str]) -> Store:
    """Open the store that the settings name, on disk or on a server.

    The files of a store travel only in archives that name it.
    """
    if settings.redis is None:
        from ...sessions.sqlite_store import SqliteStore

        return SqliteStore(session_directory(settings, environment), model, settings.limits)
    from ...sessions.redis_store import RedisStore

    return RedisStore(settings.redis, model, settings.limits)


def session_directory(settings: SessionSettings, environment: Mapping[str, str]) -> Path:
    """Return the directory of sessions on disk: of the environment, of the settings, or in the user's
    state directory.

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
