import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from fake_streaming_model import SETTINGS, streaming_manifest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import Clock, MemoryStore
from session_service import END, ID, START, STEP, ask, make_service, make_store, piece, told

from torchserve_neuron_lstm.handlers.formats.npy import read_npy
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.metrics import BatchMetrics
from torchserve_neuron_lstm.handlers.responses import JSON_LENGTH_HEADER, http_headers
from torchserve_neuron_lstm.handlers.streaming.store_sessions import StoreSessions
from torchserve_neuron_lstm.sessions import store as interface
from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.store import RecordUpdate, StoredRecord, StoreUnavailableError, WriteOutcome


def test_pieces_of_a_session_are_answered_as_its_whole_sequence() -> None:
    service = make_service()

    first, second, third = (
        service.handle([piece(ids, id="a", **fields)])[0]
        for ids, fields in (([1, 2], {"start": "true"}), ([3], {}), ([4, 5, 6], {"end": "TRUE"}))
    )

    assert told(first) == (200, {ID: "a", STEP: 2, "sums": [1, 3], "total": 3})
    assert told(second) == (200, {ID: "a", STEP: 3, "sums": [6], "total": 6})
    assert told(third) == (200, {ID: "a", STEP: 6, "sums": [10, 15, 21], "total": 21})
    assert dict(second.headers) == {ID: "a", STEP: "3"}
    assert ask(service, piece([1], id="a"))[0][0] == 410


def test_sessions_of_one_batch_run_together_and_an_unknown_one_is_never_a_new_one() -> None:
    service = make_service()
    ask(service, *(piece([n], id=f"s{n}", start="true") for n in range(5)))

    pieces = (*(piece([10, 1], id=f"s{n}") for n in range(5)), piece([7], id="new", start="true"))
    *answers, unknown = ask(service, *pieces, piece([1], id="unknown"))

    assert (unknown[0], unknown[1]["type"]) == (410, "SessionUnknown")
    assert [body["total"] for _, body in answers] == [11, 12, 13, 14, 15, 7]
    assert service.model.batches == [5, 6]  # type: ignore[attr-defined]  # the fake keeps them


def test_a_session_without_an_id_gets_one() -> None:
    service = make_service()

    ((_, first), (_, other)) = ask(service, piece([1]), piece([2]))
    ((_, second),) = ask(service, piece([3], id=first[ID]))

    assert len({first[ID], other[ID]}) == 2
    assert len(first[ID]) >= 22
    assert second["total"] == 4


def test_the_same_step_again_gets_the_same_bytes_and_a_gap_is_refused() -> None:
    service = make_service()
    ask(service, piece([1, 2], id="a", start="true", step="0"))

    first, again = (service.handle([piece([3, 4], id="a", step="2")])[0] for _ in range(2))
    gap, taken = ask(service, piece([5], id="a", step="5"))[0], ask(service, piece([9], id="a", step="2"))[0]

    assert again.body == first.body
    assert dict(again.headers) == {ID: "a", STEP: "4"}
    assert (again.replayed, first.replayed) == (True, False)
    assert (gap[0], gap[1]["type"], taken[0], taken[1]["type"]) == (409, "StepGap", 409, "StepTaken")
    assert ask(service, piece([5], id="a", step="4"))[0][1]["total"] == 15


def test_the_end_can_be_sent_again_and_has_its_own_answer_without_a_body() -> None:
    service = make_service()
    ask(service, piece([1], id="a", start="true"))

    ends = [service.handle([RawRequest({}, {ID: "a", END: "true", STEP: "1"})])[0] for _ in range(2)]

    assert [told(end) for end in ends] == [(200, {ID: "a", STEP: 1})] * 2
    assert ask(service, piece([1], id="a"))[0][1]["type"] == "SessionEnded"
    assert ask(service, piece([8], id="a", start="true"))[0][1]["total"] == 8


@pytest.mark.parametrize("fields", [{}, {"id": "7"}, {"parameters": {"binary_data_output": True}}])
def test_the_end_of_v2_has_no_inputs_and_an_answer_without_outputs(fields: dict[str, object]) -> None:
    """Its clients send an empty list: the key belongs to every request."""
    service = make_service()
    ask(service, piece([1], id="a", start="true"))
    own: object = fields.get("parameters", {})
    assert isinstance(own, dict)
    v2 = {**fields, "inputs": [], "parameters": {**own, "sequence_id": "a", "sequence_end": True, "sequence_step": 1}}

    ends = [service.handle([RawRequest({"body": json.dumps(v2).encode()})])[0] for _ in range(2)]

    assert ends[0].body == ends[1].body
    status, answer = told(ends[0])
    assert (status, answer["outputs"], answer["parameters"]) == (200, [], {ID: "a", STEP: 1})
    assert answer["id"] == fields.get("id", "")
    assert (JSON_LENGTH_HEADER in http_headers(ends[0])[1]) == ("parameters" in fields)
    assert ask(service, piece([1], id="a"))[0][1]["type"] == "SessionEnded"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_id": "a"}, "inputs"),
        ({"sequence_end": True}, "inputs"),
        ({"sequence_id": "a", "sequence_end": True, "sequence_start": True}, "inputs"),
        ({"sequence_id": "a", "sequence_end": True, "timeout": "1"}, "timeout"),
    ],
)
def test_other_requests_of_v2_need_inputs(fields: dict[str, object], message: str) -> None:
    service = make_service()
    ask(service, piece([1], id="a", start="true"))

    status, answer = ask(service, RawRequest({"body": {"inputs": [], "parameters": fields}}))[0]

    assert status == 400
    assert message in answer["error"]
    assert ask(service, piece([2], id="a"))[0][1]["total"] == 3


def test_fields_are_found_in_headers_of_any_case_in_forms_and_in_the_body() -> None:
    """Proxies change case and drop underscores; gRPC has no headers."""
    service = make_service()
    ask(service, RawRequest({"body": [1]}, {"Ts-Request-Sequence-Id": "a", "TS_REQUEST_SEQUENCE_START": "true"}))

    body = json.dumps({"ids": [2], ID: "a", STEP: 1}).encode()
    form = RawRequest({ID: b"a", "data": b"[3]"})
    v2 = {
        "inputs": [{"name": "ids", "shape": [1], "datatype": "INT64", "data": [4]}],
        "parameters": {"sequence_id": "a", "sequence_end": True},
    }
    answers = ask(service, piece(body)), ask(service, form), ask(service, piece({"instances": [[9]], ID: "a"}))
    last = ask(service, RawRequest({"body": v2}))[0][1]

    assert [answer[0][1].get("total") for answer in answers] == [3, 6, None]
    assert answers[2][0][1] == {ID: "a", STEP: 4, "predictions": [{"sums": [15], "total": 15}]}
    assert last["parameters"] == {ID: "a", STEP: 5}
    assert [entry["data"] for entry in last["outputs"]] == [[19], [19]]


def test_an_npy_answer_has_its_session_in_the_headers() -> None:
    """An .npy body has no other place for it."""
    service = make_service(manifest={"outputs": (SUMS_ONLY,), "variants": streaming_manifest().variants[:1]})

    (response,) = service.handle([RawRequest({"body": [1, 2]}, {ID: "a", START: "1", "accept": "application/x-npy"})])

    assert read_npy(response.body).tolist() == [1, 3]
    assert dict(response.headers) == {ID: "a", STEP: "2"}


SUMS_ONLY = streaming_manifest().outputs[0]


@pytest.mark.parametrize(
    ("row", "type_"),
    [
        (piece([1], id="a b"), "InvalidSessionId"),
        (piece([1], id="x" * 129), "InvalidSessionId"),
        (piece([1], id="a\r\nSet-Cookie: b"), "InvalidSessionId"),
        (piece([1], id="a", start="maybe"), "InvalidInput"),
        (piece([1], id="a", step="-1"), "InvalidInput"),
        (piece([1], id="a", step="1" * 40), "InvalidInput"),
        (piece({"ids": [1], ID: 3}), "InvalidInput"),
        (piece({"ids": [1], ID: "b"}, id="a"), "InvalidInput"),
        (piece({"instances": [[1], [2]]}, id="a", start="true"), "InvalidInput"),
        (piece(b"{", id="a", start="true"), "MalformedBody"),
        (piece([], id="a", start="true"), "InvalidInput"),
    ],
)
def test_what_is_no_piece_is_refused_alone(row: RawRequest, type_: str) -> None:
    bad, good = make_service().handle([row, piece([1], id="good", start="true")])

    assert (bad.status, json.loads(bad.body)["type"]) == (400, type_)
    assert not bad.headers
    assert good.status == 200


def test_a_session_goes_on_with_every_model_of_the_same_state_alone() -> None:
    store = make_store()
    same = make_service(StoreSessions(store))
    other = make_service(StoreSessions(store), manifest={"streaming": replace(SETTINGS, state="cd" * 16)})
    ask(same, piece([1], id="a", start="true"))

    refused = ask(other, piece([2], id="a"))[0]

    assert (refused[0], refused[1]["type"]) == (410, "ModelChanged")
    assert ask(make_service(StoreSessions(store)), piece([2], id="a"))[0][1]["total"] == 3


class Broken(MemoryStore):
    """A store that fails while it is set to fail."""

    failure: Exception | None = None

    def read(self, ids: Sequence[str], known: Mapping[str, int] | None = None) -> list[StoredRecord | None]:
        self._fail()
        return super().read(ids, known)

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        self._fail()
        return super().write(changes)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize(
    ("failure", "status"),
    [(StoreUnavailableError("it is gone"), 503), (interface.StoreFullError("the disk is full"), 507)],
)
def test_a_store_that_fails_costs_its_sessions_their_answers_and_nothing_else(
    failure: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken(Limits(10, 10**6, 600.0), Clock())
    service = make_service(StoreSessions(store))
    ask(service, piece([1], id="a", start="true"))

    store.failure = failure
    lost, whole = service.handle([piece([2], id="a"), piece([5], start="true", end="true")])
    store.failure = None

    assert (lost.status, whole.status) == (status, 200)
    assert int(lost.headers["Retry-After"]) >= 1
    assert str(failure) in caplog.text
    assert str(failure) not in lost.body.decode()
    assert ask(service, piece([2], id="a"))[0][1]["total"] == 3


def test_a_damaged_record_costs_one_session_which_can_start_again(caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(sessions=2)
    service = make_service(StoreSessions(store))
    ask(service, piece([1], id="a", start="true"), piece([1], id="b", start="true"))
    store.entries["a"].record = store.entries["a"].record[:-1] + b"!"
    service = make_service(StoreSessions(store))  # another worker: the first one knows the session that it wrote

    damaged, fine = ask(service, piece([2], id="a"), piece([2], id="b"))
    ended = ask(service, RawRequest({}, {ID: "a", END: "true"}))[0]
    later, again = (ask(service, piece([7], id="a", start="true", step=step))[0] for step in ("1", "0"))

    assert (damaged[0], damaged[1]["type"], fine[1]["total"]) == (500, "SessionDamaged", 3)
    assert "send `start` to start the session again" in damaged[1]["message"]
    assert "damaged" in caplog.text
    assert (ended[0], later[0], again) == (500, 409, (200, {ID: "a", STEP: 1, "sums": [7], "total": 7}))
    assert ask(service, piece([1], id="a", step="1"))[0][1]["total"] == 8


class Racing(MemoryStore):
    """A store in which another worker writes first, several times."""

    rivals: list[Callable[[], object]]

    def write(self, changes: Sequence[RecordUpdate]) -> list[WriteOutcome]:
        rivals, self.rivals = self.rivals, []  # rivals have no rivals
        if rivals:
            rivals.pop()()
        self.rivals = rivals
        return super().write(changes)


def test_two_workers_apply_pieces_of_one_session_in_turn_by_a_limited_number_of_attempts() -> None:
    store = Racing(Limits(10, 10**6, 600.0), Clock())
    store.rivals = []
    one, other = make_service(StoreSessions(store)), make_service(StoreSessions(store))
    ask(one, piece([1], id="a", start="true"))

    store.rivals = [lambda: ask(other, piece([10], id="a"))]
    second = ask(one, piece([20], id="a"))[0]
    store.rivals = [lambda: ask(other, piece([30], id="a", step="3"))]
    numbered = ask(one, piece([5], id="a", step="3"))[0]
    store.rivals = [lambda: ask(other, piece([7], id="a", step="4"))]
    doubled = ask(one, piece([7], id="a", step="4"))[0]

    assert second[1]["total"] == 31
    assert (numbered[0], numbered[1]["type"]) == (409, "StepTaken")
    assert doubled[1]["total"] == 68

    store.rivals = [lambda: ask(other, piece([1], id="a"))] * 100
    assert [(status, body["type"]) for status, body in ask(one, piece([2], id="a"))] == [(409, "SessionBusy")]


def test_what_was_repeated_and_what_was_idle_is_counted() -> None:
    counted: list[BatchMetrics] = []
    store = make_store(idle_seconds=10.0)
    service = make_service(StoreSessions(store), report=counted.append)
    ask(service, piece([1], id="a", start="true"), piece([1], id="b", start="true"))
    ask(service, piece([1], id="a", start="true"))
    store.clock.now += 11
    ask(service, piece([1], id="c", start="true"))

    assert [(counts.replayed, counts.expired) for counts in counted] == [(0, 0), (1, 0), (0, 2)]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_every_piece_is_applied_once_whatever_is_lost_or_doubled(ids: list[int], data: st.DataObject) -> None:
    store = make_store()
    step = 0
    while step < len(ids):
        size = data.draw(st.integers(1, len(ids) - step))
        sent = piece(ids[step : step + size], id="a", step=str(step), start="true" if step == 0 else "false")
        for _ in range(data.draw(st.integers(0, 2))):  # answers that were lost
            make_service(StoreSessions(store)).handle([sent])
        responses = make_service(StoreSessions(store)).handle([sent] * data.draw(st.integers(1, 3)))
        for response in responses:
            status, body = told(response)
            assert (status, body["total"], body[STEP]) == (200, sum(ids[: step + size]), step + size)
        step += size


def test_a_v2_id_may_be_half_a_character() -> None:
    """JSON can name half of a surrogate pair, which no text in UTF-8 has; the answer repeats it."""
    tensor = {"name": "ids", "shape": [2], "datatype": "INT64", "data": [1, 2]}
    body = {"id": "\ud800", "inputs": [tensor], "parameters": {"sequence_id": "a", "sequence_start": True}}

    first, again = ask(make_service(), *[RawRequest({"body": json.dumps(body).encode()})] * 2)

    assert first == again
    assert (first[0], first[1]["id"]) == (200, "\ud800")


def test_a_v2_request_of_several_sequences_is_refused_in_v2() -> None:
    tensor = {"name": "ids", "shape": [2, 1], "datatype": "INT64", "data": [1, 2]}
    body = {"id": "7", "inputs": [tensor], "parameters": {"sequence_id": "a", "sequence_start": True}}

    ((status, told),) = ask(make_service(), RawRequest({"body": json.dumps(body).encode()}))

    assert (status, told["type"], told["id"], told["outputs"]) == (400, "InvalidInput", "7", [])
    assert told["error"] == told["message"] == "a request of a session has one sequence, not 2"
