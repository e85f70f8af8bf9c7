"""Sessions of one model between their requests, wherever they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ...sessions.session import Session
from ..responses import RequestError


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
    """Another request of the session was applied first: the decision on this one must be made again."""


class SessionSource(Protocol):
    """A source of the sessions of one model, which loads and saves them."""

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
