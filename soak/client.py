"""A client of both models: every tenth request is bad, and every answer is judged."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chaos.connection import Connection, NoAnswer, Reply
from chaos.expected import Expected, doubled
from chaos.model import Tagger
from chaos.script import Script
from chaos.verdict import END, ID, START, STEP, Verdict, judge

from .archives import STREAM
from .bad_requests import PLAIN_KINDS, BadRequest, Refusal
from .bad_sessions import SESSION_KINDS, OpenSession
from .good_requests import Sentence, draw_request
from .hang_ups import HANG_UPS, hang_up
from .request import Request, json_request
from .tally import Tally

KINDS = (*PLAIN_KINDS, *SESSION_KINDS, *HANG_UPS)
"""The names of all kinds of bad requests."""
BAD_EVERY = 10
"""One of so many requests of a client is bad."""


@dataclass(frozen=True)
class Supply:
    """Requests to draw from, with the model's own answers."""

    model: Tagger
    sentences: Sequence[Sentence]
    sessions: Sequence[tuple[Script, Expected]]
    kinds: Iterator[str]
    """Kinds of bad requests, in turn and without end; all clients draw from it."""


class Client:
    """A client with one kept connection, and one session at a time."""

    def __init__(self, port: int, connection: Connection, supply: Supply, tally: Tally, chance: random.Random) -> None:
        self._port = port
        self._connection = connection
        self._supply = supply
        self._tally = tally
        self._chance = chance
        self._session: _Session | None = None

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Send requests while `goes_on` says so, then the rest of the open session."""
        turn = self._chance.randrange(BAD_EVERY)
        while goes_on():
            turn += 1
            if turn % BAD_EVERY == 0:
                await self._bad(next(self._supply.kinds))
            elif self._chance.random() < 0.5:
                await self._sentences()
            else:
                await self._chunk()
        while self._session is not None:
            await self._chunk()

    async def _sentences(self) -> None:
        good = draw_request(self._supply.sentences, self._chance)
        reply = await self._good(good.request)
        if reply is not None:
            self._judged(reply, right=good.is_answered_by(reply.body), request=good.request)

    async def _chunk(self) -> None:
        """Send the next chunk of the session, or the first one of another."""
        if self._session is None:
            self._session = _Session(*self._chance.choice(self._supply.sessions))
            self._tally.sessions_begun += 1
        session = self._session
        request = session.request()
        reply = await self._good(request)
        right = reply is not None and session.is_answered_by(reply, self._supply.model)
        if reply is not None:
            self._judged(reply, right=right, request=request)
        session.sent += 1
        self._tally.sessions_finished += right and session.is_over
        if not right or session.is_over:
            self._session = None

    async def _good(self, request: Request) -> Reply | None:
        self._tally.good_sent += 1
        return await self._answered(request)

    def _judged(self, reply: Reply, *, right: bool, request: Request) -> None:
        if right and reply.status == 200:
            self._tally.good_right += 1
        else:
            self._tally.add_wrong(f"{_short(request)}: {reply.status} {_text(reply)}")

    async def _bad(self, kind: str) -> None:
        if kind in HANG_UPS:
            await self._hang_up(kind)
            return
        if kind in PLAIN_KINDS:
            bad = PLAIN_KINDS[kind]()
        elif (open_session := await self._open_session()) is not None:
            bad = SESSION_KINDS[kind](open_session)
        else:
            return  # the session's own failure is counted
        await self._refused(kind, bad)

    async def _hang_up(self, kind: str) -> None:
        self._tally.bad_sent[kind] += 1
        try:
            await hang_up(self._port, HANG_UPS[kind]())
        except (OSError, asyncio.TimeoutError) as error:
            self._tally.add_wrong(f"{kind}: {type(error).__name__}")
        else:
            self._tally.bad_refused[kind] += 1

    async def _refused(self, kind: str, bad: BadRequest) -> None:
        self._tally.bad_sent[kind] += 1
        reply = await self._answered(bad.request)
        if reply is None:
            return
        if is_refusal(reply, bad.refusal):
            self._tally.bad_refused[kind] += 1
        else:
            expected = f"{bad.refusal.status} {bad.refusal.type}"
            self._tally.add_wrong(f"{kind}: expected {expected}, got {reply.status} {_text(reply)}")

    async def _open_session(self) -> OpenSession | None:
        """The client's session after at least one chunk; None if no chunk is answered right."""
        if self._session is None:
            await self._chunk()
        return None if self._session is None else self._session.opened()

    async def _answered(self, request: Request) -> Reply | None:
        try:
            return await self._connection.post(request.path, request.body, request.headers)
        except NoAnswer as error:
            self._tally.add_wrong(f"{_short(request)}: no answer: {error}")
            return None


class _Session:
    """A session of the client between its requests: a drawn script under an id that no other one has."""

    def __init__(self, script: Script, expected: Expected) -> None:
        self._script = replace(script, id=f"soak-{secrets.token_hex(8)}")
        self._expected = expected
        self._chunks = list(self._script.chunks())
        self.sent = 0
        """Chunks that were answered."""

    @property
    def is_over(self) -> bool:
        return self.sent == len(self._chunks)

    def opened(self) -> OpenSession:
        return OpenSession(self._script.id, self._chunks[self.sent].begin)

    def request(self) -> Request:
        chunk = self._chunks[self.sent]
        headers = {ID: self._script.id, STEP: str(chunk.begin)}
        headers |= {START: "true"} if chunk.number == 0 else {}
        headers |= {END: "true"} if chunk.last else {}
        return json_request(STREAM, chunk.tokens, headers)

    def is_answered_by(self, reply: Reply, model: Tagger) -> bool:
        chunk = self._chunks[self.sent]
        verdict = judge(
            reply.body,
            reply.headers,
            self._script.id,
            chunk,
            self._expected.of(chunk),
            lambda: doubled(model, self._script, chunk),
        )
        return reply.status == 200 and verdict is Verdict.RIGHT


def is_refusal(reply: Reply, refusal: Refusal) -> bool:
    """Whether a reply has the documented status, and the JSON body of an error with the documented type."""
    try:
        body = json.loads(reply.body)
    except ValueError:
        return False
    if not isinstance(body, dict) or not isinstance(body.get("message"), str) or not body["message"]:
        return False
    return (reply.status, body.get("code"), body.get("type")) == (refusal.status, refusal.status, refusal.type)


def _short(request: Request) -> str:
    return f"{request.path} {request.body[:60].decode(errors='replace')}"


def _text(reply: Reply) -> str:
    return reply.body[:200].decode(errors="replace")
