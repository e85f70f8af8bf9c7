"""Clients: sessions chunk by chunk, whole sequences in every format, and bad requests. Every answer is judged."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import torch
from attacks import npy

from .bad_requests import BAD, HANG_UPS, LONGEST, STREAM, TAGGER, Request, json_request
from .checks import Reply, Script, Session, Tally, Values, Verdict, draw_script, equal, outputs
from .model import TOKENS, Tagger

_CONNECT_SECONDS = 5.0
_MOST_PAUSE = 0.4
"""The longest pause in seconds before a request is sent again; the average is half of it."""


class NoAnswer(Exception):
    """The connection was refused or lost, or the answer did not arrive in time."""


class Connection:
    """A kept connection to a port of this machine. After any failure the next request connects anew."""

    def __init__(self, port: int, seconds: float) -> None:
        self._port, self._seconds = port, seconds
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, request: Request) -> Reply:
        """Send one request; raises `NoAnswer` with the reason."""
        try:
            reader = await self._send(request, 1.0)
            reply = await asyncio.wait_for(_read(reader), self._seconds)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
            self.close()
            raise NoAnswer(type(error).__name__) from error
        # TorchServe closes the connection after every refusal
        if reply.status >= 400 or reply.headers.get("connection") == "close":
            self.close()
        return reply

    async def hang_up(self, request: Request, share: float, seconds: float) -> None:
        """Send a share of a request, and hang up some seconds later; raises `NoAnswer` if that happened before."""
        try:
            await self._send(request, share)
            await asyncio.sleep(seconds)
        except (OSError, asyncio.TimeoutError) as error:
            raise NoAnswer(type(error).__name__) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            (_, writer), self._streams = self._streams, None
            with suppress(OSError):
                writer.close()

    async def _send(self, request: Request, share: float) -> asyncio.StreamReader:
        if self._streams is None:
            opening = asyncio.open_connection("127.0.0.1", self._port)
            self._streams = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        reader, writer = self._streams
        lines = [f"POST /predictions/{request.model} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        data = "\r\n".join([*lines, f"Content-Length: {len(request.body)}", "", ""]).encode() + request.body
        writer.write(data[: round(len(data) * share)])
        await writer.drain()
        return reader


async def _read(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Reply(int(head[0].split()[1]), headers, await reader.readexactly(int(headers.get("content-length", "0"))))


class Sentence(NamedTuple):
    """A whole sequence and the model's own answer."""

    ids: list[int]
    expected: Values


class GoodRequest(NamedTuple):
    """A request of whole sequences, and how its answer is read: the outputs of each sequence by name."""

    request: Request
    sentences: Sequence[Sentence]
    read: Callable[[Any], list[dict[str, Any]]]

    def is_answered_by(self, body: bytes) -> bool:
        """Whether a body has the right outputs of every sequence, in order."""
        try:
            pairs = list(zip(self.read(json.loads(body)), self.sentences, strict=True))
        except (ValueError, KeyError, TypeError, RuntimeError):
            return False
        return all(equal(answer, sentence.expected) for answer, sentence in pairs)


def draw_request(sentences: Sequence[Sentence], chance: random.Random) -> GoodRequest:
    """Draw sequences and a format: a list, V1, V2 or .npy."""
    chosen = chance.sample(sentences, chance.randint(1, 4))
    ids, first = chosen[0].ids, chosen[:1]
    kind = chance.choice(("list", "V1", "V2", "npy"))
    if kind == "V1":
        value = {"instances": [sentence.ids for sentence in chosen]}
        return GoodRequest(json_request(TAGGER, value), chosen, lambda answer: answer["predictions"])
    if kind == "V2":
        entry = {"name": "ids", "shape": [len(ids)], "datatype": "INT64", "data": ids}
        return GoodRequest(json_request(TAGGER, {"inputs": [entry]}), first, _v2_outputs)
    if kind == "list":
        return GoodRequest(json_request(TAGGER, ids), first, lambda answer: [answer])
    file = npy(f"({len(ids)},)", "<i8", np.array(ids).tobytes())
    request = json_request(TAGGER, file, {"Content-Type": "application/x-npy"})
    return GoodRequest(request, first, lambda answer: [answer])


def _v2_outputs(answer: Any) -> list[dict[str, Any]]:
    entries = answer["outputs"]
    return [{entry["name"]: torch.tensor(entry["data"]).reshape(entry["shape"]).tolist() for entry in entries}]


@dataclass(frozen=True)
class Traffic:
    """Requests of the clients, and how long they try."""

    model: Tagger
    scripts: Sequence[Script]
    sentences: Sequence[Sentence] = ()
    """None: sessions alone."""
    kinds: Iterator[str] | None = None
    """Kinds of bad requests, in turn and without end: every tenth request of a client is one. None: no bad requests."""
    patience: float = 0.0
    """Seconds to send a request again that got no answer or an error of the server; 0: the first answer counts."""
    hang_ups: float = 0.0
    """The share of chunks whose client closes the connection early, and sends them again."""
    answer_seconds: float = 60.0


def draw_traffic(model: Tagger, chunks: int, chance: random.Random, *, faults: bool, **settings: float) -> Traffic:
    """Draw sessions; without faults also whole sequences, with the kinds of bad requests."""
    scripts = [draw_script(model, chunks, chance) for _ in range(64)]
    if faults:
        return Traffic(model, scripts, **settings)  # type: ignore[arg-type]
    drawn = [chance.choices(range(TOKENS), k=chance.randint(1, LONGEST)) for _ in range(256)]
    return Traffic(model, scripts, [Sentence(ids, outputs(model, ids)) for ids in drawn], cycle((*BAD, *HANG_UPS)))


class Client:
    """A client with a connection to each server, and one session at a time."""

    def __init__(
        self, traffic: Traffic, connections: Sequence[Connection], tally: Tally, chance: random.Random
    ) -> None:
        self._traffic, self._tally, self._chance = traffic, tally, chance
        self._turns = cycle(chance.sample(connections, len(connections)))
        self._session: Session | None = None

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Send requests while `goes_on` says so, then the rest of the open session."""
        turn = self._chance.randrange(10)
        while goes_on():
            turn += 1
            if self._traffic.kinds is not None and turn % 10 == 0:
                await self._bad(next(self._traffic.kinds))
            elif self._traffic.sentences and self._chance.random() < 0.5:
                await self._sentences()
            else:
                await self._chunk()
        while self._session is not None:
            await self._chunk()

    async def _sentences(self) -> None:
        good = draw_request(self._traffic.sentences, self._chance)
        self._tally.good_sent += 1
        reply = await self._answered(good.request)
        if reply is not None:
            self._count(reply, good.request, right=reply.status == 200 and good.is_answered_by(reply.body))

    async def _chunk(self) -> None:
        """Send the next chunk of the session, or the first one of another."""
        tally = self._tally
        session = self._session or self._begin(self._chance.choice(self._traffic.scripts))
        request = json_request(STREAM, session.script.ids[session.begin : session.end], session.fields())
        tally.good_sent += 1
        reply = await self._answered(request, may_hang_up=True)
        if reply is not None and says_gone(reply) and tally.states_gone > session.states_gone:
            tally.good_sent -= 1
            tally.begun_again += 1
            self._begin(session.script)
            return
        verdict = Verdict.WRONG if reply is None else session.judge(reply, self._traffic.model)
        if reply is not None:
            self._count(reply, request, right=verdict is Verdict.RIGHT)
        tally.twice += verdict is Verdict.TWICE
        session.sent += 1
        tally.sessions_finished += verdict is Verdict.RIGHT and session.is_over
        if verdict is not Verdict.RIGHT or session.is_over:
            self._session = None

    def _begin(self, script: Script) -> Session:
        self._tally.sessions_begun += 1
        self._session = Session(script, self._tally.states_gone)
        return self._session

    def _count(self, reply: Reply, request: Request, *, right: bool) -> None:
        self._tally.good_right += right
        if not right:
            self._tally.wrong(f"{request}: {reply}")

    async def _bad(self, kind: str) -> None:
        if kind in HANG_UPS:
            self._tally.bad_sent[kind] += 1
            try:
                await next(self._turns).hang_up(*HANG_UPS[kind]())
                self._tally.bad_refused[kind] += 1
            except NoAnswer as error:
                self._tally.wrong(f"{kind}: {error}")
            return
        if self._session is None:
            await self._chunk()
        if self._session is None:
            return  # the failure of the session is counted
        bad = BAD[kind](self._session)
        self._tally.bad_sent[kind] += 1
        reply = await self._answered(bad.request)
        if reply is not None and bad.is_answered_by(reply):
            self._tally.bad_refused[kind] += 1
        elif reply is not None:
            self._tally.wrong(f"{kind}: expected {bad.status} {bad.type}, got {reply}")

    async def _answered(self, request: Request, *, may_hang_up: bool = False) -> Reply | None:
        """Return the answer to a request, which is sent again while there is patience; None if there is none."""
        began, why = time.monotonic(), ""
        hang_up = may_hang_up and self._chance.random() < self._traffic.hang_ups
        while not why or time.monotonic() - began < self._traffic.patience:
            if why:
                self._tally.again[why] += 1
                await asyncio.sleep(self._chance.random() * _MOST_PAUSE)
            try:
                if hang_up:
                    hang_up, why = False, "the client hung up"
                    await next(self._turns).hang_up(request, 1.0, self._chance.random() * 0.05)
                    continue
                reply = await next(self._turns).post(request)
            except NoAnswer as error:
                why = str(error)
                continue
            if not self._traffic.patience or not may_be_sent_again(reply):
                return reply
            why = f"{reply.status}"
        self._tally.wrong(f"{request}: no answer: {why}")
        return None


def says_gone(reply: Reply) -> bool:
    """Whether the server says that it has the session's state no longer."""
    kinds = {410: b'"SessionUnknown"', 500: b'"SessionDamaged"'}
    return reply.status in kinds and kinds[reply.status] in reply.body


def may_be_sent_again(reply: Reply) -> bool:
    """Whether a reply is an error of the server, or says that an earlier request of the session is still running."""
    is_busy = reply.status == 409 and b'"SessionBusy"' in reply.body
    return not says_gone(reply) and (reply.status >= 500 or is_busy)


async def send(
    traffic: Traffic, ports: Sequence[int], clients: int, tally: Tally, goes_on: Callable[[], bool], *beside: Any
) -> None:
    """Send from all clients while coroutines run beside them; one of those that fails ends the load."""
    with ExitStack() as stack:
        tasks = []
        for number in range(clients):
            opened = [stack.enter_context(closing(Connection(port, traffic.answer_seconds))) for port in ports]
            client = Client(traffic, opened, tally, random.Random(number))
            tasks.append(asyncio.create_task(client.run(goes_on)))
        others = [asyncio.create_task(coroutine) for coroutine in beside]
        load = asyncio.gather(*tasks)
        try:
            while not load.done():
                await asyncio.wait({load, *others}, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in others if task.done()]:
                    others.remove(task)
                    task.result()  # its error
            await load
        finally:
            while running := [task for task in (*tasks, *others) if not task.done()]:
                for task in running:  # one whose answer came at that moment goes on
                    task.cancel()
                await asyncio.wait(running, timeout=1.0)
            await asyncio.gather(load, return_exceptions=True)
