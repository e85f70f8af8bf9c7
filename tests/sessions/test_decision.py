from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.responses import STATUSES
from torchserve_neuron_lstm.sessions import decision as chosen
from torchserve_neuron_lstm.sessions.decision import ChunkRequest, ContinueSession, Reject, Replay, StartSession, decide
from torchserve_neuron_lstm.sessions.session import Reply, Session

MINE, OTHER = b"m" * 16, b"o" * 16
REPLY = Reply(b"the answer", "text/plain")
OPEN = Session(steps=7, last_start=4, last_digest=b"last", last_reply=REPLY, state=b"s", model=MINE)
FIRST = OPEN._replace(steps=4, last_start=0)
ENDED = OPEN._replace(state=b"", ended=True)
NEXT = ChunkRequest(start=False, end=False, step=7, digest=b"next", timesteps=2)
LAST = replace(NEXT, step=4, digest=b"last", timesteps=3)
START = replace(NEXT, start=True, step=0)
AGAIN = replace(START, digest=b"last", timesteps=4)


CASES = [
    ("a beginning", START, None, "StartSession"),
    ("a beginning without its step", replace(START, step=None), None, "StartSession"),
    ("a beginning at a later step", replace(START, step=3), None, "409 StepGap"),
    ("a beginning at a later step of a session", replace(START, step=7), OPEN, "409 StepGap"),
    ("a chunk of no session", NEXT, None, "410 SessionUnknown"),
    ("a chunk of no session, without its step", replace(NEXT, step=None), None, "410 SessionUnknown"),
    ("the next chunk", NEXT, OPEN, "ContinueSession"),
    ("the next chunk, without its step", replace(NEXT, step=None), OPEN, "ContinueSession"),
    ("the last chunk", replace(NEXT, end=True), OPEN, "ContinueSession"),
    ("a retry", LAST, OPEN, "Replay"),
    ("the same content without a step", replace(LAST, step=None), OPEN, "ContinueSession"),
    ("the same content at the next step", replace(LAST, step=7), OPEN, "ContinueSession"),
    ("other content at the last step", replace(LAST, digest=b"other"), OPEN, "409 StepTaken"),
    ("the last content, but as an end", replace(LAST, end=True), OPEN, "409 StepTaken"),
    ("a chunk too early", replace(NEXT, step=8), OPEN, "409 StepGap"),
    ("a chunk of long ago", replace(NEXT, step=2), OPEN, "409 StepGap"),
    ("a second beginning", START, OPEN, "409 SessionExists"),
    ("a second beginning of other content", START, FIRST, "409 SessionExists"),
    ("a beginning again", AGAIN, FIRST, "Replay"),
    ("a beginning again, without its step", replace(AGAIN, step=None), FIRST, "Replay"),
    ("the content of the last chunk as a beginning", replace(LAST, start=True, step=None), OPEN, "409 SessionExists"),
    ("the end again", replace(LAST, end=True), ENDED, "Replay"),
    ("the end's content without its step", replace(LAST, end=True, step=None), ENDED, "410 SessionEnded"),
    ("a chunk after the end", NEXT, ENDED, "410 SessionEnded"),
    ("a chunk after the end, without its step", replace(NEXT, step=None), ENDED, "410 SessionEnded"),
    ("another chunk in the end's place", replace(LAST, digest=b"other", end=True), ENDED, "410 SessionEnded"),
    ("a beginning after the end", START, ENDED, "StartSession"),
    ("a chunk after an upgrade", NEXT, OPEN._replace(model=OTHER), "410 ModelChanged"),
    ("a retry after an upgrade", LAST, OPEN._replace(model=OTHER), "Replay"),
    ("a beginning after an upgrade", START, OPEN._replace(model=OTHER), "StartSession"),
    ("the same beginning after an upgrade", AGAIN, FIRST._replace(model=OTHER), "StartSession"),
    ("a chunk after the end and an upgrade", NEXT, ENDED._replace(model=OTHER), "410 SessionEnded"),
]


@pytest.mark.parametrize(
    ("chunk", "session", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_chunk_is_decided_on(chunk: ChunkRequest, session: Session | None, expected: str) -> None:
    found = decide(chunk, session, MINE)
    told = f"{STATUSES[found.kind]} {found.kind}" if isinstance(found, Reject) else type(found).__name__
    assert told == expected


def test_what_is_decided_holds_what_is_needed_to_do_it() -> None:
    assert decide(NEXT, OPEN, MINE) == ContinueSession(OPEN)
    assert decide(LAST, OPEN, MINE) == Replay(REPLY)
    gap = decide(replace(NEXT, step=9), OPEN, MINE)
    assert isinstance(gap, Reject)
    assert gap.message == "this request is for step 9, and the session is at step 7"
    empty = OPEN._replace(last_start=7)  # a chunk without timesteps does not block the next one
    assert decide(NEXT, empty, MINE) == ContinueSession(empty)
    assert decide(replace(NEXT, digest=b"last", timesteps=0), empty, MINE) == Replay(REPLY)


@dataclass
class Server:
    session: Session | None = None
    applied: list[bytes] = field(default_factory=list)

    def answer(self, chunk: ChunkRequest) -> chosen.Decision:
        decision = decide(chunk, self.session, MINE)
        if isinstance(decision, StartSession | ContinueSession):
            before = decision.session.steps if isinstance(decision, ContinueSession) else 0
            state = (decision.session.state if isinstance(decision, ContinueSession) else b"") + chunk.digest
            self.applied.append(chunk.digest)
            self.session = Session(
                before + chunk.timesteps, before, chunk.digest, Reply(state, ""), state, MINE, chunk.end
            )
            return Replay(self.session.last_reply)
        return decision


@given(
    sizes=st.lists(st.tuples(st.integers(1, 3), st.sampled_from((b"a", b"b"))), min_size=1, max_size=8),
    data=st.data(),
    numbered=st.booleans(),
)
def test_a_chunk_is_applied_exactly_once_whatever_the_network_does(
    sizes: list[tuple[int, bytes]], data: st.DataObject, numbered: bool
) -> None:
    """Answers are lost, chunks are sent again, old duplicates arrive at any time, and contents repeat."""
    server = Server()
    chunks: list[ChunkRequest] = []
    step = 0
    for number, (timesteps, content) in enumerate(sizes):
        chunks.append(ChunkRequest(number == 0, number == len(sizes) - 1, step, content * timesteps, timesteps))
        step += timesteps
    so_far = b""
    for number, chunk in enumerate(chunks):
        # old duplicates come first, and change no state
        for old in data.draw(st.lists(st.sampled_from(chunks[:number]), max_size=3)) if number else ():
            before = list(server.applied)
            late = server.answer(old)
            assert server.applied == before
            assert isinstance(late, Reject) or late == Replay(Reply(so_far, ""))
        so_far += chunk.digest
        # Without numbers a chunk can be sent once only; with them as often as it takes.
        sent = chunk if numbered or data.draw(st.booleans()) else replace(chunk, step=None)
        for _ in range(1 + (data.draw(st.integers(0, 2)) if sent.step is not None else 0)):
            assert server.answer(sent) == Replay(Reply(so_far, ""))
    assert server.applied == [chunk.digest for chunk in chunks]
    assert server.session is not None
    assert server.session.ended
