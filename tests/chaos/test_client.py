"""A careful client against test servers that fail in every way."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.archive import make_model
from chaos.client import Client, Patience
from chaos.expected import Expected, expect
from chaos.script import draw_scripts
from chaos.tally import Tally
from chaos.verdict import ID, STEP, Verdict

MODEL = make_model()
(SCRIPT,) = draw_scripts(sessions=1, chunks=8, tokens=50, seed=0)
EXPECTED = expect(MODEL, SCRIPT)

Fails = Callable[[int], bytes | None]
"""A function from a request's number to the bytes sent instead of the answer; None for the answer."""


@dataclass
class Server:
    """A server that answers as the model does, unless `fails` says otherwise.

    It checks the headers that the client sends.
    """

    fails: Fails
    asked: list[int] = field(default_factory=list)
    """The step of every request."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                await reader.readexactly(int(headers["content-length"]))
                step = int(headers[STEP])
                self.asked.append(step)
                failure = self.fails(len(self.asked) - 1)
                writer.write(right_answer(step) if failure is None else failure)
                await writer.drain()
                if failure is not None:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


def right_answer(step: int) -> bytes:
    """The right answer to the chunk that begins at this token."""
    chunk = next(chunk for chunk in SCRIPT.chunks() if chunk.begin == step)
    values = {name: value.tolist() for name, value in EXPECTED.of(chunk).items()}
    body = json.dumps({**values, ID: SCRIPT.id, STEP: chunk.end})
    head = f"HTTP/1.1 200 OK\r\n{ID}: {SCRIPT.id}\r\n{STEP}: {chunk.end}\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def refusal(status: int, body: str = "{}") -> bytes:
    """A refusal with a body."""
    return f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def served(
    *servers: Server,
    hang_ups: float = 0.0,
    patience: float = 30.0,
    expected: Expected = EXPECTED,
    tally: Tally | None = None,
) -> Tally:
    """The tally of the session."""
    tally = tally or Tally()

    async def run() -> None:
        opened = [await asyncio.start_server(server.serve, "127.0.0.1", 0) for server in servers]
        ports = [one.sockets[0].getsockname()[1] for one in opened]
        await Client(MODEL, SCRIPT, expected, ports, tally, hang_ups, Patience(chunk=patience)).run()
        for one in opened:
            one.close()

    asyncio.run(run())
    return tally


def test_each_chunk_is_sent_once_without_failures() -> None:
    """Chunks are in order, each with the step before it."""
    server = Server(lambda number: None)
    tally = served(server)

    assert server.asked == [chunk.begin for chunk in SCRIPT.chunks()]
    assert (tally.finished, tally.answers, tally.retries) == (1, Counter({Verdict.RIGHT: 8}), Counter())


def test_a_chunk_without_an_answer_is_sent_again_with_the_same_step() -> None:
    """The failures are an error of the server, a lost connection, and half an answer."""
    failing = {1: refusal(500), 2: refusal(507), 4: b"", 6: right_answer(0)[:-5]}
    server = Server(failing.get)
    tally = served(server)

    begins = [chunk.begin for chunk in SCRIPT.chunks()]
    assert server.asked == sorted([*begins, begins[1], begins[1], begins[2], begins[3]])
    assert (tally.finished, tally.answers[Verdict.RIGHT], sum(tally.retries.values())) == (1, 8, 4)


def test_a_permanent_refusal_loses_the_session() -> None:
    """410 and 409 mean a loss: it is recorded, and no further request is sent."""
    for lost in (refusal(410), refusal(409, '{"type": "StepGap"}')):
        server = Server({3: lost}.get)
        tally = served(server)

        assert len(server.asked) == 4
        assert (tally.finished, len(tally.lost)) == (0, 1)


def test_a_session_whose_state_was_taken_away_begins_again() -> None:
    """The server must have said so; where nothing was taken away, the same answer is a loss."""
    gone = refusal(410, '{"type": "SessionUnknown"}')
    tally = Tally()

    def answers(number: int) -> bytes | None:
        tally.states_gone += number == 3
        return gone if number == 3 else None

    server = Server(answers)
    served(server, tally=tally)
    begins = [chunk.begin for chunk in SCRIPT.chunks()]

    assert server.asked == begins[:4] + begins
    assert (tally.begun_again, tally.finished, tally.lost) == (1, 1, [])
    assert len(served(Server({3: gone}.get)).lost) == 1


def test_two_chunks_at_once_are_no_loss() -> None:
    """A repeated request may overlap with the one before it."""
    tally = served(Server({3: refusal(409, '{"type": "SessionBusy"}')}.get))

    assert (tally.finished, tally.retries) == (1, Counter({"409": 1}))


def test_a_server_that_never_answers_loses_the_session() -> None:
    """The time limit ends the session."""
    tally = served(Server(lambda number: refusal(503)), patience=0.5)

    assert (tally.finished, len(tally.lost)) == (0, 1)


def test_a_client_that_hangs_up_sends_the_chunk_again() -> None:
    """This holds whether or not the chunk was applied."""
    server = Server(lambda number: None)
    tally = served(server, hang_ups=1.0)

    assert (tally.finished, tally.retries) == (1, Counter({"the client hung up": 8}))
    assert set(server.asked) == {chunk.begin for chunk in SCRIPT.chunks()}


def test_servers_are_asked_in_turns_and_a_dead_one_is_passed_over() -> None:
    """Each server gets about half of the requests; if one refuses all, the other answers all."""
    both = Server(lambda number: None), Server(lambda number: None)
    served(*both)
    dead, alive = Server(lambda number: b""), Server(lambda number: None)
    tally = served(dead, alive)

    assert [len(server.asked) for server in both] == [4, 4]
    assert (tally.finished, len(alive.asked)) == (1, 8)


def test_a_wrong_answer_is_told_and_the_session_goes_on() -> None:
    """All wrong answers are counted."""
    wrong = Expected(EXPECTED.tags + 1, EXPECTED.topics)
    tally = served(Server(lambda number: None), expected=wrong)

    assert (tally.finished, tally.answers[Verdict.WRONG], len(tally.strange)) == (1, 8, 8)
