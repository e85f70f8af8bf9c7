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

from ...bucketing.execute_chunks import Past
from ...bucketing.plan import Plan
from ...config.manifest import Manifest
from ...config.session_settings import Fields
from ...sessions.decision import Again, Begin, Piece, Refused, decide
from ...sessions.ids import check_id, make_id
from ...sessions.session import Reply, Session
from ..batch import Together, Work, combined, together_else_alone
from ..formats.codec import Codec
from ..formats.json_formats import Answer
from ..formats.json_text import to_json
from ..formats.request import Form, Item, RawRequest, Request
from ..responses import RawResponse, RequestError, invalid
from .fields import PieceFields, has_body, read_fields, refuse_id
from .sessions import Asked, Known, Next, Outrun, Sessions
from .state import StateBytes, Tensors

_MOST_TRIES = 8
"""Of one piece, where other workers apply pieces of the same session at the same time."""


class Model(Protocol):
    """What goes on with sequences: `handlers.runtime.loader.Variants`."""

    @property
    def manifest(self) -> Manifest:
        """Of the archive."""

    def plan(self, lengths: Sequence[int]) -> Plan:
        """The cheapest runs for pieces of these lengths."""

    def answer_onward(
        self, plan: Plan, requests: Sequence[Sequence[torch.Tensor]], lengths: Sequence[int], past: Past
    ) -> tuple[list[Answer], Tensors]:
        """The answers to the next piece of each sequence, and what the one after it goes on from."""


class AskedPiece(NamedTuple):
    """An accepted request: a piece of a session."""

    request: Request
    """It has no item where it does nothing but end its session."""
    id: str
    fields: PieceFields
    digest: bytes

    @property
    def length(self) -> int:
        """Timesteps; 0 for one that does nothing but end its session."""
        return self.request.items[0].length if self.request.items else 0

    @property
    def piece(self) -> Piece:
        """What is decided on."""
        start = self.fields.start or (self.fields.id is None and self.fields.token is None)
        return Piece(self.id, start, self.fields.end, self.fields.step, self.digest, self.length)


class _Onward(NamedTuple):
    """A piece, and what it goes on from."""

    item: Item
    behind: int
    """Timesteps."""
    state: bytes | None
    """None: it begins."""


class _Went(NamedTuple):
    """What it came to."""

    answer: Answer
    state: bytes


@dataclass(frozen=True)
class Streams:
    """The pieces of one model's sessions."""

    model: Model
    codec: Codec
    sessions: Sessions
    state_id: bytes
    """Which models can go on from each other's sessions."""
    names: Fields
    clock: Callable[[], float]
    respond: Callable[[Callable[[], tuple[bytes, str]]], RawResponse | RequestError]
    """Makes the body of an answer, or says why there is none."""
    layout: StateBytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", StateBytes(self.model.manifest.carried))

    def decode(self, raw: RawRequest) -> AskedPiece:
        """The piece in a row.

        Raises:
            RequestError: why it gets no answer.
        """
        fields, rest = read_fields(raw, self.names, json_body=self.model.manifest.codec is None)
        session = make_id() if fields.id is None else self._checked(fields.id)
        if fields.end and (fields.id or fields.token) and not fields.start and not has_body(rest):
            return AskedPiece(Request((), Form.PLAIN), session, fields, b"end")
        request = self.codec.decode(rest)
        if len(request.items) != 1:
            raise invalid(f"a piece of a session is one sequence, not {len(request.items)}")
        return AskedPiece(request, session, fields, _digest(request))

    def answer(self, asked: Sequence[AskedPiece]) -> tuple[list[RawResponse | RequestError], Work]:
        """A response for each piece, in order."""
        outcomes: dict[int, RawResponse | RequestError] = {}
        works: list[Work] = []
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
                if isinstance(outcome, Outrun) and tries[place] < _MOST_TRIES:
                    outrun.append(place)
                else:
                    outcomes[place] = _busy() if isinstance(outcome, Outrun) else outcome
            failed = {asked[place].id for place in wave if isinstance(outcomes.get(place), RequestError)}
            # A piece without a number would be applied in the place of the one before it.
            skipped = [place for place in rest if asked[place].id in failed and asked[place].fields.step is None]
            outcomes.update(dict.fromkeys(skipped, _left_behind()))
            pending = outrun + [place for place in rest if place not in skipped]
        return [outcomes[place] for place in range(len(asked))], combined(works)

    def _checked(self, given: str) -> str:
        try:
            return check_id(given)
        except ValueError as error:
            raise refuse_id(error, self.names.id) from None

    def _wave(self, asked: Sequence[AskedPiece]) -> tuple[list[RawResponse | RequestError | Outrun], Work]:
        """One piece of each session."""
        outcomes: list[RawResponse | RequestError | Outrun | None] = [None] * len(asked)
        found = self._find(asked)
        to_run: list[tuple[int, Known]] = []
        for place, known in enumerate(found):
            outcome = known if isinstance(known, RequestError) else self._decided(asked[place], known)
            if isinstance(outcome, Known):
                to_run.append((place, outcome))
            else:
                outcomes[place] = outcome
        went, work = self._run([(asked[place], known) for place, known in to_run])
        to_keep: list[tuple[int, RawResponse, Next]] = []
        for (place, known), result in zip(to_run, went, strict=True):
            made = self._made(asked[place], known, result)
            if isinstance(made, RequestError):
                outcomes[place] = made
            else:
                to_keep.append((place, *made))
        for (place, response, _), kept in zip(to_keep, self._keep([next_ for *_, next_ in to_keep]), strict=True):
            outcomes[place] = response if kept is None else kept
        return [outcome for outcome in outcomes if outcome is not None], work

    def _find(self, asked: Sequence[AskedPiece]) -> list[Known | RequestError]:
        """What is known of each session; nothing has to be looked up for one that begins and ends at once."""
        wanted = [place for place, one in enumerate(asked) if not _whole(one)]
        known: list[Known | RequestError] = [Known(None)] * len(asked)
        if wanted:
            found = self.sessions.find([Asked(asked[place].id, asked[place].fields.token) for place in wanted])
            for place, session in zip(wanted, found, strict=True):
                known[place] = session
        return known

    def _decided(self, one: AskedPiece, known: Known) -> Known | RawResponse | RequestError:
        """What the piece goes on from, or its answer."""
        decision = decide(one.piece, known.session, self.state_id)
        if isinstance(decision, Refused):
            return RequestError(decision.status, decision.kind, decision.message)
        if isinstance(decision, Again):
            assert known.session is not None
            reply = decision.reply
            return RawResponse(200, reply.body, reply.content_type, self._headers(one.id, known.session.steps), True)
        return Known(None, known.revision) if isinstance(decision, Begin) else known

    def _run(self, asked: Sequence[tuple[AskedPiece, Known]]) -> tuple[list[_Went | RequestError | None], Work]:
        """What each piece came to; None for one that does nothing but end its session."""
        onward = [_onward(one, known) for one, known in asked if one.request.items]
        went, work = together_else_alone(onward, [one.item.length for one in onward], self._together)
        results = iter(went)
        return [next(results) if one.request.items else None for one, _ in asked], work

    @property
    def _together(self) -> Together[_Onward, _Went]:
        def together(own: Sequence[_Onward]) -> tuple[list[_Went], Work]:
            lengths = tuple(one.item.length for one in own)
            rows = tuple(row for row, one in enumerate(own) if one.state is not None)
            states = [state for one in own if (state := one.state) is not None]
            past = Past(rows, tuple(own[row].behind for row in rows), self.layout.read(states))
            began = self.clock()
            plan = self.model.plan(lengths)
            planned = self.clock()
            answers, carried = self.model.answer_onward(plan, [one.item.tensors for one in own], lengths, past)
            work = Work(lengths, sum(lengths), (plan,), planned - began, self.clock() - planned)
            return [*map(_Went, answers, self._states(carried, len(own)))], work

        return together

    def _states(self, carried: Tensors, rows: int) -> list[bytes]:
        return self.layout.write(carried) if carried else [b""] * rows

    def _made(
        self, one: AskedPiece, known: Known, went: _Went | RequestError | None
    ) -> tuple[RawResponse, Next] | RequestError:
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
        return response._replace(headers=self._headers(one.id, steps)), Next(one.id, session, known)

    def _encoded(self, one: AskedPiece, went: _Went | None, says: dict[str, object]) -> tuple[bytes, str]:
        if went is None:
            return to_json(says), "application/json"
        if self.names.token in says and one.request.npy:
            raise invalid("a .npy answer has no place for the session's token: accept application/json")
        return self.codec.encode(one.request, [went.answer], says)

    def _keep(self, sessions: Sequence[Next]) -> list[Outrun | RequestError | None]:
        """Keep what another piece may go on from, or be held against."""
        wanted = [place for place, one in enumerate(sessions) if not _is_whole(one)]
        kept: list[Outrun | RequestError | None] = [None] * len(sessions)
        if wanted:
            for place, outcome in zip(wanted, self.sessions.keep([sessions[place] for place in wanted]), strict=True):
                kept[place] = outcome
        return kept

    def _headers(self, session: str, steps: int) -> dict[str, str]:
        return {self.names.id: session, self.names.step: str(steps)}


def _digest(request: Request) -> bytes:
    """Of what was sent and of how it is to be answered: who sends both again gets the same answer."""
    digest = blake2b(f"{request.form.name} {request.npy} {request.id}".encode(), digest_size=16)
    for tensor in request.items[0].tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        raw = bytearray(max(1, tensor.numel() * tensor.element_size()))
        if tensor.numel():
            torch.frombuffer(raw, dtype=tensor.dtype).copy_(tensor.reshape(-1))
        digest.update(raw)
    return digest.digest()


def _whole(one: AskedPiece) -> bool:
    """Whether it is a session all by itself."""
    return one.piece.start and one.fields.end and not one.fields.step


def _is_whole(one: Next) -> bool:
    return one.session.ended and one.known.session is None and one.known.revision is None and one.session.steps > 0


def _first_of_each(pending: Sequence[int], asked: Sequence[AskedPiece]) -> tuple[list[int], list[int]]:
    """The first piece of each session, and the others."""
    first: dict[str, int] = {}
    rest = [place for place in pending if first.setdefault(asked[place].id, place) != place]
    return list(first.values()), rest


def _onward(one: AskedPiece, known: Known) -> _Onward:
    (item,) = one.request.items
    session = known.session
    return _Onward(item, 0, None) if session is None else _Onward(item, session.steps, session.state)


def _busy() -> RequestError:
    return RequestError(
        409, "SessionBusy", "other pieces of this session came at the same time: send them in turn", 1.0
    )


def _left_behind() -> RequestError:
    return RequestError(
        409, "PieceBeforeFailed", "the piece before it, which came at the same time, failed: send both again, in turn"
    )
