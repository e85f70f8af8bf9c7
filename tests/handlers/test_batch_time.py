"""The time of a batch: what its host would give up is refused, whatever took the time."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from fake_model import FakeModel, make_manifest
from session_service import ask as ask_sessions
from session_service import make_service as make_session_service
from session_service import piece

from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.config.manifest import MeasuredCost
from torchserve_neuron_lstm.config.manifest_values import RequestLimits
from torchserve_neuron_lstm.handlers.formats import Codec, make_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.handlers.service import Service

TIMEOUT_SECONDS = 8.0
COSTS = tuple(MeasuredCost("sequence", Bucket(rows, steps), 100.0 * rows) for rows in (1, 4) for steps in (4, 8))


class SlowClock:
    """Seconds that pass only in the calls that a test makes slow."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: Counter[str] = Counter()

    def __call__(self) -> float:
        return self.now

    def slow_down(self, patch: pytest.MonkeyPatch, kind: type, name: str, seconds: float) -> None:
        original = getattr(kind, name)

        def slowly(*arguments: Any, **named: Any) -> object:
            self.now += seconds
            self.calls[name] += 1
            return original(*arguments, **named)

        patch.setattr(kind, name, slowly)


@pytest.fixture
def clock() -> SlowClock:
    return SlowClock()


def make_service(clock: SlowClock, **facts: Any) -> Service:
    manifest = make_manifest(**{"costs": COSTS, **facts})
    codec = make_codec(manifest, ModelIdentity("model", "1.0"))
    return Service(FakeModel(manifest), codec, clock=clock, response_timeout_ms=1000 * TIMEOUT_SECONDS)


def handle(service: Service, bodies: Sequence[object]) -> list[RawResponse]:
    return service.handle([RawRequest({"body": body}, {"url_path": ""}) for body in bodies])


def check_refused(responses: Sequence[RawResponse]) -> None:
    for response in responses:
        assert (response.status, json.loads(response.body)["type"]) == (504, "DeadlineExceeded")
        assert response.headers == {"Retry-After": "1"}


@pytest.mark.parametrize("body", [b"[1]" + b" " * 70_000, [1]], ids=["bytes", "parsed by the host"])
def test_bodies_are_refused_unread_once_decoding_has_taken_its_share(
    clock: SlowClock, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.slow_down(monkeypatch, Codec, "decode", 0.75)

    responses = handle(make_service(clock), [body] * 20)

    assert [response.status for response in responses[:2]] == [200, 200]
    check_refused(responses[2:])
    assert clock.calls["decode"] == 2


def test_small_bodies_do_not_wait_for_large_ones(clock: SlowClock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.slow_down(monkeypatch, Codec, "decode", 0.75)

    responses = handle(make_service(clock), [*[b"[1]" + b" " * 70_000] * 20, b"[2]"])

    assert (responses[-1].status, responses[-1].body) == (200, b"[2.0]")
    check_refused(responses[1:-1])


def test_a_piece_of_a_session_is_not_applied_after_one_that_was_not_read(
    clock: SlowClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_session_service(clock=clock, response_timeout_ms=1000 * TIMEOUT_SECONDS)
    ask_sessions(service, piece([1], id="a", start="true"))
    clock.slow_down(monkeypatch, Codec, "decode", 1.5)

    answers = ask_sessions(service, *(piece(b"[1]" + b" " * 700_000, id="a") for _ in range(3)), piece(b"[5]", id="a"))

    assert [status for status, _ in answers] == [200, 504, 504, 504]


@pytest.mark.parametrize(("costs", "slow"), [(COSTS, 0.0), ((), 0.003)], ids=["by the estimate", "by the clock"])
def test_short_requests_do_not_wait_for_long_ones(
    clock: SlowClock, costs: tuple[MeasuredCost, ...], slow: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.slow_down(monkeypatch, FakeModel, "run", slow)
    service = make_service(clock, costs=costs)

    responses = handle(service, [*[{"instances": [[1] * 8] * 8}] * 600, [2]])

    assert responses[-1].status == 200
    refused = [response for response in responses if response.status != 200]
    check_refused(refused)
    assert refused
    assert clock.now <= TIMEOUT_SECONDS / 2


@pytest.mark.parametrize(("kind", "name"), [(FakeModel, "run"), (Codec, "encode")])
def test_what_takes_longer_than_its_estimate_is_computed_as_far_as_there_is_time(
    clock: SlowClock, kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.slow_down(monkeypatch, kind, name, 0.6)
    service = make_service(clock)

    responses = handle(service, [[1, number] for number in range(32)])

    answered = sum(response.status == 200 for response in responses)
    assert 0 < answered < 32
    assert [json.loads(response.body) for response in responses[:answered]] == [[1.0, 1.0 + n] for n in range(answered)]
    check_refused(responses[answered:])
    assert clock.now <= TIMEOUT_SECONDS / 2


def test_sequences_that_fail_together_are_tried_alone_while_there_is_time(
    clock: SlowClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.slow_down(monkeypatch, FakeModel, "run", 0.7)

    responses = handle(make_service(clock, costs=()), [[66], [1], *[[2]] * 10])

    answered = sum(response.status == 200 for response in responses)
    assert [response.status for response in responses[:2]] == [500, 200]
    check_refused(responses[1 + answered :])
    assert clock.now <= TIMEOUT_SECONDS / 2


def test_a_large_batch_is_run_in_pieces_with_the_answers_of_one(clock: SlowClock) -> None:
    service = make_service(clock)
    bodies = [{"instances": [[number], [number, 2]]} for number in range(12)]

    responses = handle(service, bodies)

    assert [json.loads(one.body)["predictions"] for one in responses] == [[[n], [n, n + 2]] for n in range(12)]
    assert isinstance(service.model, FakeModel)
    assert len(service.model.runs) > 6


def test_no_limit_of_a_request_is_beyond_the_time_of_a_batch(clock: SlowClock) -> None:
    """It would be told again and again that there is no time at the moment."""
    service = make_service(clock, limits=RequestLimits(milliseconds=7_000))

    (response,) = handle(service, [{"instances": [[1]] * 200}])

    assert (response.status, json.loads(response.body)["type"]) == (413, "TooMuchWork")
    assert "at most 4000 " in json.loads(response.body)["message"]


def test_pieces_of_a_session_that_no_time_is_left_for_are_not_applied(
    clock: SlowClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_session_service(clock=clock, response_timeout_ms=1000 * TIMEOUT_SECONDS)
    ask_sessions(service, piece([1], id="a", start="true"))
    batch = [piece([1], id="a", step=str(step)) for step in range(1, 9)]
    clock.slow_down(monkeypatch, type(service.model), "run_plan", 1.0)

    answers = ask_sessions(service, *batch)

    assert [status for status, _ in answers] == [200] * 4 + [504] * 4
    assert clock.now == TIMEOUT_SECONDS / 2
    assert [body["total"] for _, body in ask_sessions(service, *batch[4:])] == [6, 7, 8, 9]


def test_sessions_of_a_large_batch_run_in_pieces_and_their_requests_in_order(clock: SlowClock) -> None:
    costs = tuple(MeasuredCost("chunk", Bucket(rows, steps), 200.0 * rows) for rows in (1, 4) for steps in (4, 8))
    service = make_session_service(manifest={"costs": costs}, clock=clock, response_timeout_ms=1000 * TIMEOUT_SECONDS)
    names = "abcdef"

    started = ask_sessions(service, *(piece([1], id=name, start="true") for name in names))
    more = ask_sessions(service, *(piece([number], id=name) for number in (2, 3) for name in names))

    assert [body["total"] for _, body in started] == [1] * 6
    assert [body["total"] for _, body in more] == [3] * 6 + [6] * 6
