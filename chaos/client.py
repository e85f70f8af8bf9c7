"""A careful client of one session: a request without an answer is sent again, with the same step."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import cycle

from .archive import NAME
from .connection import Connection, NoAnswer, Reply
from .expected import Expected, doubled
from .model import Tagger
from .script import Chunk, Script
from .tally import Tally
from .verdict import END, ID, START, STEP, Verdict, judge

_PATH = f"/predictions/{NAME}"
_MOST_PAUSE = 0.4
"""The longest pause in seconds before a request is sent again; the average is half of it."""
_HANG_UP_WITHIN = 0.05


@dataclass(frozen=True)
class Patience:
    """Time limits in seconds."""

    answer: float = 15.0
    """Seconds to wait for an answer before the connection is closed."""
    chunk: float = 120.0
    """Seconds to try one chunk before the session is given up."""


@dataclass(frozen=True)
class Client:
    """A client that sends one session."""

    model: Tagger
    script: Script
    expected: Expected
    ports: Sequence[int]
    """Ports of servers that share their sessions; requests go to each in turn."""
    tally: Tally
    hang_ups: float
    """The share of chunks whose answer the client does not wait for."""
    patience: Patience = Patience()

    async def run(self) -> None:
        """Send every chunk in order, until the last one or until the session is lost.

        Where the state was taken away, and the server says so, the session is begun again under another id.
        """
        chance = random.Random(self.script.id)
        with ExitStack() as stack:
            opened = [stack.enter_context(closing(Connection(port, self.patience.answer))) for port in self.ports]
            # Clients begin at different servers.
            turns = cycle(chance.sample(opened, len(opened)))
            attempt = self
            while await attempt._is_gone(turns, chance):
                self.tally.begun_again += 1
                attempt = replace(self, script=replace(self.script, id=f"{attempt.script.id}-again"))

    async def _is_gone(self, turns: cycle[Connection], chance: random.Random) -> bool:
        """Send every chunk; returns whether the state was taken away, and the server said so."""
        gone_before = self.tally.states_gone
        for chunk in self.script.chunks():
            reply = await self._answered(chunk, turns, chance)
            if reply is not None and _says_gone(reply) and self.tally.states_gone > gone_before:
                return True
            if reply is None or not self._go_on(chunk, reply):
                return False
        self.tally.finished += 1
        return False

    async def _answered(self, chunk: Chunk, turns: cycle[Connection], chance: random.Random) -> Reply | None:
        """The answer or refusal of a chunk, which is sent as often as needed; None after the time limit."""
        body, headers = _request(self.script, chunk)
        deadline = time.monotonic() + self.patience.chunk
        hang_up = chance.random() < self.hang_ups
        why = ""
        while time.monotonic() < deadline:
            if why:
                self.tally.retries[why] += 1
                await asyncio.sleep(chance.random() * _MOST_PAUSE)
            try:
                if hang_up:
                    hang_up, why = False, "the client hung up"
                    await next(turns).post_and_hang_up(_PATH, body, headers, chance.random() * _HANG_UP_WITHIN)
                    continue
                reply = await next(turns).post(_PATH, body, headers)
            except NoAnswer as error:
                why = str(error)
                continue
            if not _may_be_sent_again(reply):
                return reply
            why = f"{reply.status}"
        self.tally.lost.append(f"{self.script.id}: chunk {chunk.number} got no answer, at last: {why}")
        return None

    def _go_on(self, chunk: Chunk, reply: Reply) -> bool:
        where = f"{self.script.id}, chunk {chunk.number}"
        if reply.status != 200:
            self.tally.lost.append(f"{where}: {reply.status} {reply.body[:200].decode(errors='replace')}")
            return False
        verdict = judge(
            reply.body,
            reply.headers,
            self.script.id,
            chunk,
            self.expected.of(chunk),
            lambda: doubled(self.model, self.script, chunk),
        )
        self.tally.answers[verdict] += 1
        if verdict is not Verdict.RIGHT:
            self.tally.strange.append(f"{where}: {verdict.value}: {reply.body[:200].decode(errors='replace')}")
        return True


def _request(script: Script, chunk: Chunk) -> tuple[bytes, dict[str, str]]:
    headers = {"Content-Type": "application/json", ID: script.id, STEP: str(chunk.begin)}
    if chunk.number == 0:
        headers[START] = "true"
    if chunk.last:
        headers[END] = "true"
    return json.dumps(chunk.tokens).encode(), headers


def _says_gone(reply: Reply) -> bool:
    """Whether the server says that it has the session's state no longer."""
    told = {410: b'"SessionUnknown"', 500: b'"SessionDamaged"'}
    return reply.status in told and told[reply.status] in reply.body


def _may_be_sent_again(reply: Reply) -> bool:
    """Whether the reply is a server error or reports two requests of one session at once.

    The second happens when a request is sent again while the first one is still running.
    """
    if _says_gone(reply):
        return False
    return reply.status >= 500 or (reply.status == 409 and b'"SessionBusy"' in reply.body)
