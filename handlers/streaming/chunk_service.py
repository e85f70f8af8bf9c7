"""Requests of sessions.

Each is applied to its session once, in order, and saved before its response is sent.

A batch is processed in rounds, each with at most one request of each session: requests of different sessions run
together, those of one session one after the other. If two workers get requests of one session at the same time, the
store accepts one of them. The other worker then decides again, by the session as it is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from ...bucketing.execute_chunks import ResumedState
from ...sessions.decision import ChunkRequest, Reject, Replay, StartSession, decide
from ...sessions.session import Reply, Session, check_id, make_id
from ...sessions.settings import SessionFields
from ..admission import Pace, out_of_time
from ..batch import BatchStats, attempt, infer, merge_stats, run_with_isolation
from ..formats import Codec
from ..formats.binary_tensors import to_bytes
from ..formats.json_text import to_json
from ..formats.raw_request import RawRequest
from ..formats.request import InferenceRequest, Outputs, SequenceInput
from ..responses import JSON, Encoded, Outcome, RawResponse, RequestError, invalid
from ..runtime.loader import ServedModel
from .fields import SessionFieldValues, find_session_fields, has_body, id_outside_body, read_session_fields
from .state import LoadedSession, RevisionConflict, SessionKey, SessionSource, SessionUpdate, StateSerializer

_MAX_ATTEMPTS = 8
"""Attempts for one request, while other workers apply requests of the same session."""


_DAMAGED = "the stored record of this session is damaged: send `start` to start the session again"
_BUSY = "other requests of this session came at the same time: send them one after the other"
_CHUNK_BEFORE_FAILED = (
    "the session's request before this one, which came at the same time, failed: send both again, in order"
)


class SessionRequest(NamedTuple):
    """An accepted request of a session."""

    request: InferenceRequest
    """The decoded request, without a sequence if it only ends its session."""
    id: str
    fields: SessionFieldValues
    digest: bytes
    client: str | None = None
    """The client, where the host names it."""

    @property
    def length(self) -> int:
        """Timesteps; 0 for a request that only ends its session."""
        return self.request.sequences[0].length if self.request.sequences else 0

    @property
    def chunk(self) -> ChunkRequest:
        """The facts that `decide` needs."""
        start = self.fields.start or (self.fields.id is None and self.fields.token is None)
        return ChunkRequest(start, self.fields.end, self.fields.step, self.digest, self.length)

    @property
    def is_whole_session(self) -> bool:
        """Whether the session starts and ends with this request."""
        return self.chunk.start and self.fields.end and not self.fields.step


class ChunkInput(NamedTuple):
    """The input of one chunk and the state from which it is resumed."""

    sequence: SequenceInput
    offset: int
    """Timesteps of the session before the chunk."""
    state: bytes | None
    """None: the session starts with the chunk."""


class ChunkOutput(NamedTuple):
    """The outputs of one chunk and the state after it."""

    outputs: Outputs
    state: bytes


@dataclass(frozen=True)
class SessionService:
    """Service for the sessions of one model."""

    model: ServedModel
    codec: Codec
    sessions: SessionSource
    state_id: bytes
    """The identity of the models that can resume each other's sessions."""
    names: SessionFields
    clock: Callable[[], float]
    """A function that returns seconds."""
    respond: Callable[[Callable[[], Encoded]], Outcome]
    """A function that makes the response of an encoder's body, or refuses."""
    client_header: str | None = None
    """The header in which the host names the client; None: it names none."""
    serializer: StateSerializer = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "serializer", StateSerializer(self.model.manifest.carried))

    def decode(self, request: RawRequest) -> SessionRequest:
        """Decode one request of a session.

        Raises `RequestError`: why the request is refused; with its session, if the body need not be read for that.
        """
        try:
            return self._decode(request)
        except RequestError as error:
            error.session = error.session or id_outside_body(request, self.names)
            raise

    def _decode(self, request: RawRequest) -> SessionRequest:
        self.codec.check_size(request, request.written())
        found, rest = find_session_fields(request, self.names, self.codec.is_json)
        try:
            fields = read_session_fields(found, self.names)
            if request.stream is not None:
                fields = request.stream.complete(fields, self.names)
            session = make_id() if fields.id is None else self._checked_id(fields.id)
        except RequestError as error:
            self.codec.add_keys(error, rest)
            raise
        # Requests without a client's name share one limit, so leaving the header out does not evade the limit of a
        # client.
        client = None if self.client_header is None else request.header(self.client_header.lower())
        may_end = fields.end and bool(fields.id or fields.token) and not fields.start
        if may_end and not has_body(rest):
            return SessionRequest(InferenceRequest((), self.codec.formats[-1]), session, fields, b"end", client)
        decoded = attempt(self._decode_sequence, rest, may_end)
        if isinstance(decoded, RequestError):
            decoded.session = session
            raise decoded
        return SessionRequest(decoded, session, fields, _digest(decoded), client)

    def _decode_sequence(self, request: RawRequest, may_end: bool) -> InferenceRequest:
        if may_end and (ending := self.codec.decode_end(request)) is not None:
            return ending
        decoded = self.codec.decode(request)
        if len(decoded.sequences) != 1:
            refusal = invalid(f"a request of a session has one sequence, not {len(decoded.sequences)}")
            self.codec.add_keys(refusal, decoded)
            raise refusal
        return decoded

    def handle(
        self,
        requests: Sequence[SessionRequest],
        pace: Pace,
        first_piece: Callable[[Sequence[Sequence[SequenceInput]]], int],
    ) -> tuple[list[Outcome], BatchStats]:
        """Return a response for each request, in order.

        `first_piece` returns how many of the requests with these sequences may run together, and `pace` after each
        round whether there is time for another.
        """
        outcomes: dict[int, Outcome] = {}
        stats: list[BatchStats] = []
        attempts: Counter[int] = Counter()
        reached: set[str] = set()  # sessions that the store has served in this batch: they may be on another server
        unavailable: RequestError | None = None
        pending = _in_turn(requests)
        while pending:
            if stats and not pace.allows_another():
                outcomes.update((index, out_of_time()) for index in pending)
                break
            first: dict[str, int] = {}  # the first request of each session
            rest = [index for index in pending if first.setdefault(requests[index].id, index) != index]
            current = list(first.values())
            size = first_piece([requests[index].request.sequences for index in current])
            if size < len(current):
                current = sorted(current, key=lambda index: requests[index].length)[:size]
                rest = [index for index in pending if index not in current]
            results, round_stats = self._run_round([requests[index] for index in current], pace)
            stats.append(round_stats)
            pending = []
            for index, result in zip(current, results):
                attempts[index] += 1
                if isinstance(result, RevisionConflict) and attempts[index] < _MAX_ATTEMPTS:
                    pending.append(index)
                else:
                    busy = RequestError("SessionBusy", _BUSY, 1.0)
                    outcomes[index] = busy if isinstance(result, RevisionConflict) else result
            failed = {
                requests[index].id: outcome
                for index in current
                if isinstance(outcome := outcomes.get(index), RequestError)
            }
            reached.update(
                requests[index].id
                for index in current
                if requests[index].id not in failed and not requests[index].is_whole_session
            )
            unavailable = next((one for one in failed.values() if one.kind == "StoreUnavailable"), unavailable)
            for index in rest:
                one = requests[index]
                refusal = _after_failure(one, failed.get(one.id), None if one.id in reached else unavailable)
                if refusal is None:
                    pending.append(index)
                else:
                    outcomes[index] = refusal
        return [outcomes[index] for index in range(len(requests))], merge_stats(stats)

    def _checked_id(self, given: str) -> str:
        try:
            return check_id(given)
        except ValueError as error:
            raise RequestError("InvalidSessionId", f"{self.names.id}: {error}") from None

    def _run_round(
        self, requests: Sequence[SessionRequest], pace: Pace
    ) -> tuple[list[Outcome | RevisionConflict], BatchStats]:
        decided = [
            loaded if isinstance(loaded, RequestError) else self._decide(request, loaded)
            for request, loaded in zip(requests, self._load(requests))
        ]
        to_run = [(request, loaded) for request, loaded in zip(requests, decided) if isinstance(loaded, LoadedSession)]
        results, stats = self._run(to_run, pace)
        responded = [self._respond(*continued, result) for continued, result in zip(to_run, results)]
        saved = iter(self._save([one[1] for one in responded if not isinstance(one, RequestError)]))
        # A response is sent only if its session was saved.
        sent = iter([one if isinstance(one, RequestError) else next(saved) or one[0] for one in responded])
        return [next(sent) if isinstance(one, LoadedSession) else one for one in decided], stats

    def _load(self, requests: Sequence[SessionRequest]) -> list[LoadedSession | RequestError]:
        """Load each session, except those that start and end with their request."""
        whole = [one.is_whole_session for one in requests]
        keys = [SessionKey(one.id, one.fields.token) for one, is_whole in zip(requests, whole) if not is_whole]
        loaded = iter(self.sessions.load(keys) if keys else [])
        return [LoadedSession(None) if is_whole else next(loaded) for is_whole in whole]

    def _decide(self, request: SessionRequest, loaded: LoadedSession) -> LoadedSession | RawResponse | RequestError:
        """Return the session that the request continues, or else its response."""
        if loaded.damaged and not request.chunk.start:
            return RequestError("SessionDamaged", _DAMAGED)
        decision = decide(request.chunk, loaded.session, self.state_id)
        if isinstance(decision, Reject):
            return RequestError(decision.kind, decision.message)
        if isinstance(decision, Replay):
            assert loaded.session is not None
            reply, headers = decision.reply, self._headers(request.id, loaded.session.steps)
            return RawResponse(200, reply.body, reply.content_type, headers, replayed=True)
        return LoadedSession(None, loaded.revision) if isinstance(decision, StartSession) else loaded

    def _run(
        self, requests: Sequence[tuple[SessionRequest, LoadedSession]], pace: Pace
    ) -> tuple[list[ChunkOutput | RequestError | None], BatchStats]:
        """Run the chunk of each request; None for a request that only ends its session."""
        chunks = [_chunk_input(one, loaded) for one, loaded in requests if one.request.sequences]
        lengths = [chunk.sequence.length for chunk in chunks]
        outputs, stats = run_with_isolation(chunks, lengths, self._run_chunks, pace)
        results = iter(outputs)
        return [next(results) if one.request.sequences else None for one, _ in requests], stats

    def _run_chunks(self, chunks: Sequence[ChunkInput]) -> tuple[list[ChunkOutput], BatchStats]:
        rows = tuple(row for row, chunk in enumerate(chunks) if chunk.state is not None)
        states = [state for chunk in chunks if (state := chunk.state) is not None]
        carried = self.serializer.deserialize(states)
        resumed = ResumedState(rows, tuple(chunks[row].offset for row in rows), carried)
        outputs, carry, stats = infer(self.model, [chunk.sequence for chunk in chunks], self.clock, resumed)
        states = self.serializer.serialize(carry) if carry else [b""] * len(chunks)
        return [*map(ChunkOutput, outputs, states)], stats

    def _respond(
        self, request: SessionRequest, loaded: LoadedSession, result: ChunkOutput | RequestError | None
    ) -> tuple[RawResponse, SessionUpdate] | RequestError:
        """Return the response to a request, and its session after it."""
        if isinstance(result, RequestError):
            return result
        before = 0 if loaded.session is None else loaded.session.steps
        steps, end = before + request.length, request.fields.end
        state = b"" if end or result is None else result.state
        values = {self.names.id: request.id, self.names.step: steps}
        if not end and (token := self.sessions.token(steps, state)) is not None:
            values[self.names.token] = token
        response = self.respond(lambda: self._encode(request, result, values))
        if isinstance(response, RequestError):
            return response
        reply = Reply(response.body, response.content_type)
        session = Session(steps, before, request.digest, reply, state, self.state_id, end)
        update = SessionUpdate(request.id, session, loaded, request.fields.id is not None, request.client)
        return response._replace(headers=self._headers(request.id, steps)), update

    def _encode(self, request: SessionRequest, result: ChunkOutput | None, values: dict[str, object]) -> Encoded:
        if result is None and request.request.format is self.codec.formats[-1]:
            return to_json(values), JSON
        if self.names.token in values and request.request.npy:
            raise invalid("a .npy response cannot hold the session's token: accept application/json")
        return self.codec.encode(request.request, [] if result is None else [result.outputs], values)

    def _save(self, updates: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Save the sessions that a later request may need; those that started and ended at once are not saved."""
        whole = [
            one.session.ended and one.session.steps > 0 and one.loaded.session is None and one.loaded.revision is None
            for one in updates
        ]
        wanted = [update for update, is_whole in zip(updates, whole) if not is_whole]
        saved = iter(self.sessions.save(wanted) if wanted else [])
        return [None if is_whole else next(saved) for is_whole in whole]

    def _headers(self, session: str, steps: int) -> dict[str, str]:
        return {self.names.id: session, self.names.step: str(steps)}


def _digest(request: InferenceRequest) -> bytes:
    """Digest the inputs and response options (blake2b, 16 bytes). A request with the same digest is a replay."""
    wanted = "" if request.outputs is None else "".join(f"+{index}{'bj'[not one]}" for index, one in request.outputs)
    facts = f"{request.format.name}{wanted} {request.npy} {request.id}"
    digest = blake2b(facts.encode("utf-8", "surrogatepass"), digest_size=16)  # JSON has half characters
    for tensor in request.sequences[0].tensors if request.sequences else ():
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(to_bytes(tensor) or b"\0")
    return digest.digest()


def without_successors(
    accepted: Sequence[InferenceRequest | SessionRequest | RequestError],
    timely: Sequence[InferenceRequest | SessionRequest | RequestError],
) -> list[InferenceRequest | SessionRequest | RequestError]:
    """Refuse also the requests that come after a refused one of their session, in the same batch.

    They would be applied in the place of the refused one, unless they have a step number. `timely` has the refusals of
    `accepted`, and those of late requests.
    """
    refused_sessions: set[str] = set()
    kept: list[InferenceRequest | SessionRequest | RequestError] = []
    for before, now in zip(accepted, timely):
        outcome = now
        if isinstance(before, SessionRequest):
            if before.id in refused_sessions and before.fields.step is None:
                outcome = RequestError("ChunkBeforeFailed", _CHUNK_BEFORE_FAILED)
            if isinstance(outcome, RequestError):
                refused_sessions.add(before.id)
        elif isinstance(before, RequestError) and before.session is not None:
            refused_sessions.add(before.session)
        kept.append(outcome)
    return kept


def _in_turn(requests: Sequence[SessionRequest]) -> list[int]:
    """Return the order in which requests are applied.

    Those of a session that have a step number are sorted by it, among their own places; the others keep theirs.
    """
    order = list(range(len(requests)))
    numbered: dict[str, list[tuple[int, int]]] = {}
    for index, one in enumerate(requests):
        if one.fields.step is not None:
            numbered.setdefault(one.id, []).append((one.fields.step, index))
    for own in numbered.values():
        for (_, place), (_, index) in zip(own, sorted(own)):
            order[place] = index
    return order


def _after_failure(
    request: SessionRequest, failed: RequestError | None, unavailable: RequestError | None
) -> RequestError | None:
    """Return the refusal of a request after others of its batch; None: it has its turn.

    `failed` is that of the request before it in its session, `unavailable` that of a store which the session has not
    reached yet. Each further request would wait for such a store as long as the one before, and the batch with it.
    """
    if failed is not None:
        # A request without a step number would be applied in place of the failed one before it.
        if request.fields.step is None:
            return RequestError("ChunkBeforeFailed", _CHUNK_BEFORE_FAILED)
        if failed.kind in ("StoreFull", "StoreUnavailable"):  # its next request would get them too
            return failed
    return None if request.is_whole_session else unavailable


def _chunk_input(request: SessionRequest, loaded: LoadedSession) -> ChunkInput:
    (sequence,) = request.request.sequences
    session = loaded.session
    return ChunkInput(sequence, 0, None) if session is None else ChunkInput(sequence, session.steps, session.state)
