import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.formats.raw_request import Body, RawRequest
from torchserve_neuron_lstm.handlers.responses import RequestError
from torchserve_neuron_lstm.handlers.streaming import fields as session_fields
from torchserve_neuron_lstm.handlers.streaming.fields import SessionFieldValues, has_body, read_session_fields
from torchserve_neuron_lstm.sessions.settings import SessionFields

NAMES = SessionFields(*(f"ts_request_sequence_{word}" for word in ("id", "start", "end", "step", "token")))
JSON = {"Content-Type": "application/json"}
WHOLE = SessionFieldValues("a", start=True, end=False, step=0, token=None)


def read_request(
    request: RawRequest, names: SessionFields, is_json: Callable[[Body], bool]
) -> tuple[SessionFieldValues, RawRequest]:
    found, rest = session_fields.find_session_fields(request, names, is_json)
    return read_session_fields(found, names), rest


def read(row: dict[str, Any], headers: dict[str, Any] | None = None, *, json_body: bool = True) -> SessionFieldValues:
    return read_request(RawRequest(row, headers or {}), NAMES, lambda _: json_body)[0]


def refusal(row: dict[str, Any], headers: dict[str, Any] | None = None) -> str:
    with pytest.raises(RequestError) as refused:
        read(row, headers)
    assert refused.value.status == 400
    return refused.value.message


def spelled(spelling: str) -> dict[str, str]:
    words = {"id": "a", "start": "true", "step": "0"}
    return {getattr(str, spelling)(f"ts_request_sequence_{word}"): value for word, value in words.items()}


@pytest.mark.parametrize("spelling", ["lower", "upper", "title", "swapcase"])
@pytest.mark.parametrize("dash", ["_", "-"])
def test_headers_are_read_however_they_are_spelled(spelling: str, dash: str) -> None:
    """Go and proxies change the spelling."""
    headers = {name.replace("_", dash): value for name, value in spelled(spelling).items()}

    assert read({"body": b"[1]"}, headers) == WHOLE


def test_fields_of_a_form_or_of_grpc_are_read() -> None:
    fields = {name: value.encode() for name, value in spelled("lower").items()}

    assert read({"data": b"[1]", **fields}) == WHOLE


@pytest.mark.parametrize("parsed", [True, False])
def test_fields_of_a_json_object_are_read_and_taken_out(parsed: bool) -> None:
    value = {
        "ids": [1],
        "ts_request_sequence_id": "a",
        "TS_REQUEST_SEQUENCE_START": True,
        "ts-request-sequence-step": 0,
    }
    row = {"body": value if parsed else json.dumps(value).encode()}
    fields, rest = read_request(RawRequest(row, JSON), NAMES, lambda _: True)

    assert fields == WHOLE
    assert rest.body().value == {"ids": [1]}


@pytest.mark.parametrize("prefix", ["", "ts_request_"])
def test_parameters_of_a_v2_request_are_read(prefix: str) -> None:
    said = {f"{prefix}sequence_id": "a", f"{prefix}sequence_start": True, f"{prefix}sequence_step": 0}

    assert read({"body": {"inputs": [], "parameters": said}}) == WHOLE


def test_a_codecs_json_is_not_looked_into() -> None:
    body = b'{"ts_request_sequence_id": "a"}'
    fields, rest = read_request(RawRequest({"body": body}, JSON), NAMES, lambda _: False)

    assert fields == SessionFieldValues(None, start=False, end=False, step=None, token=None)
    assert rest.body().value == body


def test_other_names_take_the_place_of_the_usual_ones() -> None:
    names = SessionFields("X-Session", "X-Begin", "X-End", "X-Step", "X-Token")
    headers = {"x-session": "a", "X_BEGIN": "1", "x-step": "0", "ts_request_sequence_end": "true"}

    assert read_request(RawRequest({"body": b"[1]"}, headers), names, lambda _: True)[0] == WHOLE


def test_what_is_said_twice_must_be_the_same() -> None:
    headers = {"ts_request_sequence_id": "a", "ts_request_sequence_start": "True", "ts_request_sequence_step": "0"}
    body = {"ts_request_sequence_id": "a", "ts_request_sequence_start": True}

    assert read({"body": body}, headers) == WHOLE
    for other in "bA":
        assert "is given twice, with different values" in refusal(
            {"body": {**body, "ts_request_sequence_id": other}}, headers
        )


@pytest.mark.parametrize("first", ["ts_request_sequence_id", "ts_request_sequence\\u005fid"])
def test_of_equal_keys_the_last_one_counts(first: str) -> None:
    """JSON's reader passes on no other; another spelling is another key, which must agree."""
    last = '"ts_request_sequence_id": "last"'

    assert read({"body": f'{{"{first}": "first", {last}}}'.encode()}, JSON).id == "last"
    assert "is given twice" in refusal({"body": f'{{"TS-request-sequence-id": "first", {last}}}'.encode()}, JSON)


def test_lists_that_are_too_deep_to_be_written_are_refused_too() -> None:
    """A reader of JSON takes more levels than what compares two values can follow."""
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    body = {"ts_request_sequence_id": deep, "parameters": {"sequence_id": [deep]}}

    assert "must be a string, not a list" in refusal({"body": body})


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        ("id", 7, "must be a string, not 7"),
        ("id", ["a"], "must be a string, not a list"),
        ("token", {}, "must be a string, not an object"),
        ("start", "yes", "must be true or false, not 'yes'"),
        ("end", 2, "must be true or false, not 2"),
        ("step", "-1", "must be the number of timesteps before this request, not '-1'"),
        *(("step", value, "must be the number") for value in (-1, 1.0, True, "1" * 20, 2**63, "٣")),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(word: str, value: object, said: str) -> None:
    message = refusal({"body": {"ids": [1], f"ts_request_sequence_{word}": value}})

    assert message.startswith(f"ts_request_sequence_{word} {said}")


def test_null_is_a_missing_field() -> None:
    """Some JSON clients write every key."""
    body = {"ids": [1], **{f"ts_request_sequence_{word}": None for word in ("id", "start", "end", "step", "token")}}

    assert read({"body": body}) == SessionFieldValues(None, start=False, end=False, step=None, token=None)


@pytest.mark.parametrize("row", [{}, {"body": b""}, {"body": {}}, {"data": ""}, {"ts_request_sequence_id": b"a"}])
def test_a_request_without_input_has_no_body(row: dict[str, Any]) -> None:
    assert not has_body(RawRequest(row, {}))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([*vars(NAMES).values(), "body", "data", "parameters", "sequence_id", "TS-Request-Sequence-Step"])


@given(
    st.dictionaries(keys | st.text(max_size=5), anything, max_size=4),
    st.dictionaries(keys | st.text(max_size=5), st.text(max_size=8) | anything, max_size=3),
    st.booleans(),
)
@example({"body": b"\x93NUMPY"}, {}, True)
@example({"body": {"parameters": {"sequence_id": {}}}}, {}, True)
@example({"body": "[" * 10_000}, {"Content-Type": "application/json"}, True)
def test_whatever_comes_is_read_or_refused(row: dict[str, Any], headers: dict[str, Any], json_body: bool) -> None:
    try:
        fields, rest = read_request(RawRequest(row, headers), NAMES, lambda _: json_body)
        has_body(rest)
    except RequestError:
        return
    assert fields.id is None or isinstance(fields.id, str)
    assert isinstance(fields.start, bool)
    assert fields.step is None or 0 <= fields.step < 2**63
