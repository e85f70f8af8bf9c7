"""Sessions of a stream: chunks that come one after the other, and need not repeat the id and the step."""

from __future__ import annotations

from ...sessions.settings import SessionFields
from ..responses import RawResponse, RequestError
from .fields import SessionFieldValues

_NO_FIELDS = SessionFieldValues(None, start=False, end=False, step=None, token=None)
_MOST_CERTAIN = 1000
"""Sessions of one stream that continue without a step after a chunk of another one failed."""
_FAILED = (
    "a chunk before this one failed: send that one again and then this one, each with its step, or begin the stream "
    "again at the step of the last answer"
)


class StreamSessions:
    """The sessions that a stream's chunks continue. The next chunk comes once the one before is answered."""

    def __init__(self, first: SessionFieldValues = _NO_FIELDS) -> None:
        """`first` has the fields of a first chunk that names no session."""
        self._next = first
        self._names = SessionFields()
        self._asked: str | None = None
        self._has_failure = False
        self._certain: set[str] = set()
        """Sessions of which no chunk failed after their last answer."""

    def complete(self, given: SessionFieldValues, names: SessionFields) -> SessionFieldValues:
        """Return the fields of a chunk. One that names no session continues that of the last answer.

        Raises `RequestError`: 409, it would be applied in the place of a chunk that failed.
        """
        is_ordered = given.start or given.step is not None or given.token is not None
        fields = given
        if given.id is None and given.token is None:
            fields = given._replace(id=self._next.id) if is_ordered else self._next._replace(end=given.end)
        self._names, self._asked = names, fields.id
        if self._has_failure and not is_ordered and fields.id not in self._certain:
            raise RequestError("ChunkBeforeFailed", _FAILED)
        return fields

    def note(self, response: RawResponse) -> None:
        """Note the answer to the chunk that came last."""
        asked, self._asked = self._asked, None
        session = response.headers.get(self._names.id)
        if response.status == 200:
            if session is not None:  # a stream of gRPC may ask a model without sessions, too
                self._next = _NO_FIELDS._replace(id=session, step=int(response.headers[self._names.step]))
                if len(self._certain) == _MOST_CERTAIN:
                    self._certain.pop()
                self._certain.add(session)
            return
        self._has_failure = True
        if asked is None:  # a chunk of any session: it could not be read
            self._certain.clear()
        else:
            self._certain.discard(asked)
