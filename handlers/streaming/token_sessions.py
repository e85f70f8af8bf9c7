"""Sessions in signed tokens that clients hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...sessions.session import Reply, Session
from ...sessions.token import InvalidTokenError, TokenState, sign_token, token_model, verify_token
from ..responses import RequestError
from .state import LoadedSession, SessionKey, SessionSource


@dataclass(frozen=True)
class TokenSessions(SessionSource):
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
