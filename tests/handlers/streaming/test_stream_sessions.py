"""The laws of a stream's chunks, without a server."""

from typing import Any

import pytest
from session_service import END, ID, START, STEP, make_service, told

from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.handlers.streaming import stream_sessions
from torchserve_neuron_lstm.handlers.streaming.stream_sessions import StreamSessions


class Stream:
    def __init__(self) -> None:
        self.service, self.sessions = make_service(), StreamSessions()

    def ask(self, ids: list[object] | None, **fields: object) -> Any:
        body = fields if ids is None else {"ids": ids, **fields}
        (response,) = self.service.handle([RawRequest({"body": body}, stream=self.sessions)])
        self.sessions.note(response)
        return told(response)[1]


def test_a_chunk_without_an_id_continues_the_session_of_the_last_answer_until_it_is_started_again() -> None:
    stream = Stream()
    first, second = stream.ask([1]), stream.ask([2, 3])
    assert (second[ID], second[STEP], second["total"]) == (first[ID], 3, 6)
    assert stream.ask(None, **{END: True})[STEP] == 3
    assert stream.ask([4])["type"] == "SessionEnded"
    assert stream.ask([4], **{START: True})["total"] == 4


@pytest.mark.parametrize("bad", [["x"], [66]])
def test_after_a_failure_only_a_step_or_a_start_goes_on(bad: list[object], caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream()
    stream.ask([1], **{ID: "a", START: True})
    stream.ask([5], **{ID: "b", START: True})
    assert stream.ask(bad, **{ID: "a"})["code"] in {400, 500}

    assert stream.ask([2], **{ID: "b"})["total"] == 7  # no chunk of this one failed
    assert stream.ask([2], **{ID: "a"})["type"] == "ChunkBeforeFailed"
    assert stream.ask([2], **{ID: "c"})["type"] == "ChunkBeforeFailed"  # it may exist, with another chunk before
    assert stream.ask([2], **{ID: "a", STEP: 1})["total"] == 3
    assert stream.ask([3], **{ID: "a"})["total"] == 6
    assert stream.ask([3], **{ID: "c", START: True})["total"] == 3


def test_a_chunk_that_cannot_be_read_may_be_of_any_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sessions, "_MOST_CERTAIN", 2)
    stream = Stream()
    for name in "abc":
        stream.ask([1], **{ID: name, START: True})
    assert len(stream.sessions._certain) == 2
    stream.sessions.note(RawResponse(400, b""))
    assert [stream.ask([2], **{ID: name})["type"] for name in "abc"] == ["ChunkBeforeFailed"] * 3
