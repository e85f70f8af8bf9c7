"""Pieces of sessions to answers. Each is applied to its session once, in order, and kept before it is answered.

Pieces of different sessions run together. Those of one session that came in one batch run one after the other; those
that came to two workers at once are told apart by the store, which lets one of them be first: the other is decided on
again, against the session as it is then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Protocol

import torch

from ...bucketing.execute_chunks import ResumedState
from ...bucketing.plan import Plan
from ...config.manifest import Manifest
from ...sessions.decision import ChunkRequest, Reject, Replay, StartSession, decide
from ...sessions.ids import check_id, make_id
from ...sessions.session import Reply, Session
from ...sessions.settings import SessionFields
from ..batch import BatchFunction, BatchStats, merge_stats, run_with_isolation
from ..formats.codec import Codec
from ..formats.json_formats import Outputs
from ..formats.json_text import to_json
from ..formats.request import Form, InferenceRequest, SequenceInput, TorchServeRequest
from ..responses import RawResponse, RequestError, invalid
from .fields import SessionFieldValues, has_body, invalid_session_id, read_session_fields
from .sessions import LoadedSession, RevisionConflict, SessionKey, Sessions, SessionUpdate
from .state import StateSerializer, Tensors

_MAX_ATTEMPTS = 8
"""Of one piece, where other workers apply pieces of the same session at the same time."""


class Model(Protocol):
    """What goes on with sequences: `handlers.runtime.loader.Variants`."""

    @property
    def manifest(self) -> Manifest:
        """Of the archive."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest runs for pieces of these lengths."""

    def resume_plan(
        self, plan: Plan, requests: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int], past: ResumedState
    ) -> tuple[list[Outputs], Tensors]:
        """The answers to the next piece of each sequence, and what the one after it goes on from."""


class SessionRequest(NamedTuple):
    """An accepted request: a piece of a session."""

    request: InferenceRequest
    """It has no item where it does nothing but end its session."""
    id: str
    fields: SessionFieldValues
    digest: bytes

    @property
    def length(self) -> int:
        """Timesteps; 0 for one that does nothing but end its session."""
        return self.request.items[0].length if self.request.items else 0

    @property
    def piece(self) -> ChunkRequest:
        """What is decided on."""
        start = self.fields.start or (self.fields.id is None and self.fields.token is None)
        return ChunkRequest(self.id, start, self.fields.end, self.fields.step, self.digest, self.length)


class ChunkInput(NamedTuple):
    """A piece, and what it goes on from."""

    item: SequenceInput
    offset: int
    """Timesteps."""
    state: bytes | None
    """None: it begins."""


class ChunkOutput(NamedTuple):
    """What it came to."""

    answer: Outputs
    state: bytes


@dataclass(frozen=True)
class SessionService:
    """The pieces of one model's sessions."""

    model: Model
    codec: Codec
    sessions: Sessions
    state_id: bytes
    """Which models can go on from each other's sessions."""
    names: SessionFields
    clock: Callable[[], float]
    respond: Callable[[Callable[[], tuple[bytes, str]]], RawResponse | RequestError]
    """Makes the body of an answer, or says why there is none."""
    layout: StateSerializer = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", StateSerializer(self.model.manifest.carried))

    def decode(self, raw: TorchServeRequest) -> SessionRequest:
        """The piece in a row.

        Raises:
            RequestError: why it gets no answer.
        """
        fields, rest = read_session_fields(raw, self.names, json_body=self.model.manifest.codec is None)
        session = make_id() if fields.id is None else self._checked(fields.id)
        if fields.end and (fields.id or fields.token) and not fields.start and not has_body(rest):
            return SessionRequest(InferenceRequest((), Form.PLAIN), session, fields, b"end")
        request = self.codec.decode(rest)
        if len(request.items) != 1:
            raise invalid(f"a piece of a session is one sequence, not {len(request.items)}")
        return SessionRequest(request, session, fields, _digest(request))

    def answer(self, asked: Sequence[SessionRequest]) -> tuple[list[RawResponse | RequestError], BatchStats]:
        """A response for each piece, in order."""
        outcomes: dict[int, RawResponse | RequestError] = {}
        works: list[BatchStats] = []
        tries: Counter[int] = Counter()
        # Those of one session by their numbers, where they have any, and else as they came.
        pending = sorted(range(len(asked)), key=lambda place: asked[place].fields.step or 0)
        while pending:
            wave, rest = _first_of_each(pending, asked)
            done, work = self._wave([asked[place] for place in wave])
            works.append(work)
            outrun = []
            for place, outcome in zip(wave, done, strict=True):
                tries[place] += 1
                if isinstance(outcome, RevisionConflict) and tries[place] < _MAX_ATTEMPTS:
                    outrun.append(place)
                else:
                    outcomes[place] = _busy() if isinstance(outcome, RevisionConflict) else outcome
            failed = {asked[place].id for place in wave if isinstance(outcomes.get(place), RequestError)}
            # A piece without a number would be applied in the place of the one before it.
            skipped = [place for place in rest if asked[place].id in failed and asked[place].fields.step is None]
            outcomes.update(dict.fromkeys(skipped, _left_behind()))
            pending = outrun + [place for place in rest if place not in skipped]
        return [outcomes[place] for place in range(len(asked))], merge_stats(works)

    def _checked(self, given: str) -> str:
        try:
            return check_id(given)
        except ValueError as error:
            raise invalid_session_id(error, self.names.id) from None

    def _wave(
        self, asked: Sequence[SessionRequest]
    ) -> tuple[list[RawResponse | RequestError | RevisionConflict], BatchStats]:
        """One piece of each session."""
        outcomes: list[RawResponse | RequestError | RevisionConflict | None] = [None] * len(asked)
        found = self._find(asked)
        to_run: list[tuple[int, LoadedSession]] = []
        for place, known in enumerate(found):
            outcome = known if isinstance(known, RequestError) else self._decided(asked[place], known)
            if isinstance(outcome, LoadedSession):
                to_run.append((place, outcome))
            else:
                outcomes[place] = outcome
        went, work = self._run([(asked[place], known) for place, known in to_run])
        to_keep: list[tuple[int, RawResponse, SessionUpdate]] = []
        for (place, known), result in zip(to_run, went, strict=True):
            made = self._made(asked[place], known, result)
            if isinstance(made, RequestError):
                outcomes[place] = made
            else:
                to_keep.append((place, *made))
        for (place, response, _), kept in zip(to_keep, self._keep([next_ for *_, next_ in to_keep]), strict=True):
            outcomes[place] = response if kept is None else kept
        return [outcome for outcome in outcomes if outcome is not None], work

    def _find(self, asked: Sequence[SessionRequest]) -> list[LoadedSession | RequestError]:
        """What is known of each session; nothing has to be looked up for one that begins and ends at once."""
        wanted = [place for place, one in enumerate(asked) if not _whole(one)]
        known: list[LoadedSession | RequestError] = [LoadedSession(None)] * len(asked)
        if wanted:
            found = self.sessions.find([SessionKey(asked[place].id, asked[place].fields.token) for place in wanted])
            for place, session in zip(wanted, found, strict=True):
                known[place] = session
        return known

    def _decided(self, one: SessionRequest, known: LoadedSession) -> LoadedSession | RawResponse | RequestError:
        """What the piece goes on from, or its answer."""
        decision = decide(one.piece, known.session, self.state_id)
        if isinstance(decision, Reject):
            return RequestError(decision.status, decision.kind, decision.message)
        if isinstance(decision, Replay):
            assert known.session is not None
            reply = decision.reply
            return RawResponse(200, reply.body, reply.content_type, self._headers(one.id, known.session.steps), True)
        return LoadedSession(None, known.revision) if isinstance(decision, StartSession) else known

    def _run(
        self, asked: Sequence[tuple[SessionRequest, LoadedSession]]
    ) -> tuple[list[ChunkOutput | RequestError | None], BatchStats]:
        """What each piece came to; None for one that does nothing but end its session."""
        onward = [_onward(one, known) for one, known in asked if one.request.items]
        went, work = run_with_isolation(onward, [one.item.length for one in onward], self._together)
        results = iter(went)
        return [next(results) if one.request.items else None for one, _ in asked], work

    @property
    def _together(self) -> BatchFunction[ChunkInput, ChunkOutput]:
        def together(own: Sequence[ChunkInput]) -> tuple[list[ChunkOutput], BatchStats]:
            lengths = tuple(one.item.length for one in own)
            rows = tuple(row for row, one in enumerate(own) if one.state is not None)
            states = [state for one in own if (state := one.state) is not None]
            past = ResumedState(rows, tuple(own[row].offset for row in rows), self.layout.read(states))
            began = self.clock()
            plan = self.model.plan(lengths)
            planned = self.clock()
            answers, carried = self.model.resume_plan(plan, [one.item.tensors for one in own], lengths, past)
            work = BatchStats(lengths, sum(lengths), (plan,), planned - began, self.clock() - planned)
            return [*map(ChunkOutput, answers, self._states(carried, len(own)))], work

        return together

    def _states(self, carried: Tensors, rows: int) -> list[bytes]:
        return self.layout.write(carried) if carried else [b""] * rows

    def _made(
        self, one: SessionRequest, known: LoadedSession, went: ChunkOutput | RequestError | None
    ) -> tuple[RawResponse, SessionUpdate] | RequestError:
        """The answer to a piece, and its session after it."""
        if isinstance(went, RequestError):
            return went
        before = 0 if known.session is None else known.session.steps
        steps, end = before + one.length, one.fields.end
        state = b"" if end or went is None else went.state
        says = {self.names.id: one.id, self.names.step: steps}
        if not end and (token := self.sessions.token(steps, state)) is not None:
            says[self.names.token] = token
        response = self.respond(lambda: self._encoded(one, went, says))
        if isinstance(response, RequestError):
            return response
        reply = Reply(response.body, response.content_type)
        session = Session(steps, before, one.digest, reply, state, self.state_id, end)
        return response._replace(headers=self._headers(one.id, steps)), SessionUpdate(one.id, session, known)

    def _encoded(self, one: SessionRequest, went: ChunkOutput | None, says: dict[str, object]) -> tuple[bytes, str]:
        if went is None:
            return to_json(says), "application/json"
        if self.names.token in says and one.request.npy:
            raise invalid("a .npy answer has no place for the session's token: accept application/json")
        return self.codec.encode(one.request, [went.answer], says)

    def _keep(self, sessions: Sequence[SessionUpdate]) -> list[RevisionConflict | RequestError | None]:
        """Keep what another piece may go on from, or be held against."""
        wanted = [place for place, one in enumerate(sessions) if not _is_whole(one)]
        kept: list[RevisionConflict | RequestError | None] = [None] * len(sessions)
        if wanted:
            for place, outcome in zip(wanted, self.sessions.keep([sessions[place] for place in wanted]), strict=True):
                kept[place] = outcome
        return kept

    def _headers(self, session: str, steps: int) -> dict[str, str]:
        return {self.names.id: session, self.names.step: str(steps)}


def _digest(request: InferenceRequest) -> bytes:
    """Of what was sent and of how it is to be answered: who sends both again gets the same answer."""
    digest = blake2b(f"{request.form.name} {request.npy} {request.id}".encode(), digest_size=16)
    for tensor in request.items[0].tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        raw = bytearray(max(1, tensor.numel() * tensor.element_size()))
        if tensor.numel():
            torch.frombuffer(raw, dtype=tensor.dtype).copy_(tensor.reshape(-1))
        digest.update(raw)
    return digest.digest()


def _whole(one: SessionRequest) -> bool:
    """Whether it is a session all by itself."""
    return one.piece.start and one.fields.end and not one.fields.step


def _is_whole(one: SessionUpdate) -> bool:
    return one.session.ended and one.known.session is None and one.known.revision is None and one.session.steps > 0


def _first_of_each(pending: Sequence[int], asked: Sequence[SessionRequest]) -> tuple[list[int], list[int]]:
    """The first piece of each session, and the others."""
    first: dict[str, int] = {}
    rest = [place for place in pending if first.setdefault(asked[place].id, place) != place]
    return list(first.values()), rest


def _onward(one: SessionRequest, known: LoadedSession) -> ChunkInput:
    (item,) = one.request.items
    session = known.session
    return ChunkInput(item, 0, None) if session is None else ChunkInput(item, session.steps, session.state)


def _busy() -> RequestError:
    return RequestError(
        409, "SessionBusy", "other pieces of this session came at the same time: send them in turn", 1.0
    )


def _left_behind() -> RequestError:
    return RequestError(
        409, "PieceBeforeFailed", "the piece before it, which came at the same time, failed: send both again, in turn"
    )
