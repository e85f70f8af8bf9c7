import json
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fake_model import FakeModel, make_manifest
from hypothesis import given
from hypothesis import strategies as st
from own_description import described

from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest, MeasuredCost
from torchserve_neuron_lstm.config.manifest_values import RequestLimits
from torchserve_neuron_lstm.config.own_model import ShortSequences
from torchserve_neuron_lstm.handlers.admission import PendingRequest, late, least_bytes, remaining_ms
from torchserve_neuron_lstm.handlers.formats import Codec, make_codec
from torchserve_neuron_lstm.handlers.formats.json_text import ResponseTooLong, to_json
from torchserve_neuron_lstm.handlers.formats.npy import write_npy
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RawResponse, RequestError
from torchserve_neuron_lstm.handlers.service import Service

LARGEST_REFUSAL = 4096
"""Bytes; a refusal repeats a few characters of a request, and an id."""


class CountingModel(FakeModel):
    computed = 0

    def run_plan(self, plan: Any, sequences: Any, *arguments: Any, **more: Any) -> Any:
        self.computed += len(sequences)
        return super().run_plan(plan, sequences, *arguments, **more)


def service_of(manifest: Manifest, **settings: Any) -> Service:
    return Service(CountingModel(manifest), make_codec(manifest, ModelIdentity("m", "1")), **settings)


def ask(service: Service, body: object, **headers: str) -> RawResponse:
    return service.handle([RawRequest({"body": body}, headers)])[0]


def kind_of(response: RawResponse) -> str:
    return str(json.loads(response.body).get("type", ""))


def entry(shape: list[int], data: list[int]) -> dict[str, object]:
    return {"name": "ids", "shape": shape, "datatype": "INT64", "data": data}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"inputs": [entry([2, 0], [])] * 3}, "TooManySequences"),
        ({"inputs": [entry([4, 1], [1, 2, 3, 4])] * 2}, "TooManySequences"),
        ({"inputs": [entry([1, 8], [1] * 8)] * 3}, "TooManyTimesteps"),
        ({"instances": [[1] * 8] * 3}, "TooManyTimesteps"),
        ({"instances": [[1]] * 6}, "TooManySequences"),
        ([1] * 21, "TooManyTimesteps"),
        (b"[" + b" " * 3000 + b"1]", "BodyTooLarge"),
    ],
)
def test_what_exceeds_a_limit_is_refused_before_a_tensor_is_made(
    body: object, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = replace(make_manifest(), limits=RequestLimits(sequences=5, timesteps=20, body_bytes=2000))
    made: list[object] = []
    if kind == "TooManySequences":
        monkeypatch.setattr(torch, "empty", lambda *_, **__: made.append(1))
        monkeypatch.setattr(torch, "frombuffer", lambda *_, **__: made.append(1))
    service = service_of(manifest)

    response = ask(service, body)

    assert (response.status, kind_of(response), made) == (413, kind, [])
    assert isinstance(service.model, CountingModel)
    assert service.model.computed == 0


def test_a_body_that_torchserve_has_parsed_is_measured_by_its_header() -> None:
    """The parsed value does not tell its bytes."""
    manifest = replace(make_manifest(), limits=RequestLimits(body_bytes=2000))

    response = ask(service_of(manifest), [1, 2], **{"Content-Length": "2001"})

    assert kind_of(response) == "BodyTooLarge"
    assert ask(service_of(manifest), [1, 2], **{"Content-Length": "2000"}).status == 200


@pytest.mark.parametrize("body", [b" " * 2001, "é" * 2001], ids=["bytes", "text"])
def test_a_body_over_grpc_that_was_not_parsed_is_refused_with_the_keys_of_v2(body: object) -> None:
    """It may be one of V2, for which TorchServe reads them without a check; a body over HTTP is not."""
    service = service_of(replace(make_manifest(), limits=RequestLimits(body_bytes=2000)))

    over_grpc = service.handle([RawRequest({"body": body}, {"body": {"content-type": "application/json"}})])[0]
    over_http = ask(service, body, url_path="")

    told, keys = json.loads(over_grpc.body), {"model_name": "m", "model_version": "1", "id": "", "outputs": []}
    assert told == {**json.loads(over_http.body), **keys, "error": told["message"]}
    assert told["type"] == "BodyTooLarge"


def test_v2_over_grpc_is_told_an_unexpected_error_in_its_envelope(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker would be lost, and with it the other requests of its batch."""
    monkeypatch.setattr(Codec, "decode", Mock(side_effect=KeyError))
    told = json.loads(ask(service_of(make_manifest()), b"[1]").body)

    assert (told["type"], told["id"], told["outputs"]) == ("InternalError", "", [])
    assert told["error"] == told["message"]


def test_a_response_that_cannot_be_sent_is_refused_before_anything_is_computed() -> None:
    """Its size follows from the lengths; npy takes 4 bytes a number, JSON 2 or more."""
    service = service_of(make_manifest(), max_response_bytes=20)

    assert kind_of(ask(service, {"instances": [[1] * 4] * 3})) == "AnswerTooLarge"
    assert kind_of(ask(service, [1] * 6, Accept="application/x-npy")) == "AnswerTooLarge"
    assert isinstance(service.model, CountingModel)
    assert service.model.computed == 0
    assert ask(service, [1]).status == 200


def test_a_request_whose_work_would_take_too_long_is_refused_with_the_estimate() -> None:
    costs = tuple(MeasuredCost("sequence", Bucket(b, t), 10.0 * t) for b in (1, 4) for t in (4, 8))
    manifest = replace(make_manifest(), costs=costs)

    refused = ask(service_of(manifest, response_timeout_ms=500.0), [1] * 8)
    allowed = ask(service_of(replace(manifest, limits=RequestLimits(milliseconds=100)), response_timeout_ms=500.0), [1])

    assert (refused.status, kind_of(refused)) == (413, "TooMuchWork")
    assert b"would take about 80 ms, one request may take at most 50 (limits.milliseconds)" in refused.body
    assert allowed.status == 200


def test_sequences_that_the_models_own_code_answers_count_with_its_time() -> None:
    costs = (MeasuredCost("sequence", Bucket(4, 8), 1.0),)
    short = ShortSequences(1, 30.0, described({"ids": {"input": 0}}))
    manifest = replace(make_manifest(), costs=costs, shortest=3, short=short, limits=RequestLimits(milliseconds=50))

    refused = ask(service_of(manifest), {"instances": [[1], [1, 2], [1] * 8]})

    assert b"would take about 60 ms" in refused.body
    assert ask(service_of(manifest), {"instances": [[1], [1] * 8]}).status == 200


texts = st.text(max_size=20) | st.integers(100, 100_000).map(lambda size: "é" * size)
bodies = st.one_of(
    st.fixed_dictionaries({"id": texts, "inputs": st.just([entry([1], [1])]) | texts | st.lists(texts, max_size=2)}),
    st.fixed_dictionaries({"model_name": texts, "inputs": st.just(1), "id": texts}),
    st.dictionaries(texts, texts, max_size=3),
    st.lists(texts, max_size=3),
    texts,
)


@given(bodies, st.booleans())
def test_no_refusal_is_large_whatever_it_repeats(body: object, parsed: bool) -> None:
    response = ask(service_of(make_manifest()), body if parsed else json.dumps(body).encode())

    assert response.status in {200, 400, 413}
    assert len(response.body) <= LARGEST_REFUSAL


def test_an_id_is_repeated_up_to_its_bound() -> None:
    service = service_of(make_manifest())
    allowed = ask(service, {"id": "x" * 512, "inputs": [entry([1], [1])]})
    refused = ask(service, {"id": "x" * 513, "inputs": [entry([1], [1])]})

    assert (allowed.status, json.loads(allowed.body)["id"]) == (200, "x" * 512)
    assert (refused.status, json.loads(refused.body)["id"]) == (400, "")
    assert "expected at most 512 characters, got 513" in json.loads(refused.body)["message"]


@pytest.mark.parametrize("body", [[1, "x"], b"[1,", {"inputs": [entry([2], [1])]}, {"instances": [[1], [101]]}])
def test_nothing_of_a_refused_body_is_kept(body: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback or a cause would hold its rows while the batch is computed."""
    kept: list[object] = []
    encode_error = Codec.encode_error

    def watch(codec: Codec, error: RequestError, refused: object) -> bytes:
        kept.extend((error.__traceback__, error.__context__, error.__cause__))
        return encode_error(codec, error, refused)

    monkeypatch.setattr(Codec, "encode_error", watch)

    assert ask(service_of(make_manifest()), body).status == 400
    assert kept == [None, None, None]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.sampled_from([("batch", "time"), ("batch", "time", 3), ("batch", 5), ("batch", "(time - 1)//2 + 1", 2)]),
    st.sampled_from(["float32", "int64", "float64"]),
)
def test_no_response_is_smaller_than_its_bound(lengths: list[int], shape: Any, dtype: Any) -> None:
    """Zeros are the shortest numbers."""
    spec = TensorSpec("y", dtype, shape)
    outputs = [torch.zeros(spec.item_sizes(length), dtype=getattr(torch, dtype)) for length in lengths]
    least = partial(least_bytes, (spec,))

    assert len(to_json(outputs)) >= least(lengths, [(0, False)])
    assert len(write_npy(outputs[0])) >= least(lengths[:1], [(0, True)])


values = st.recursive(
    st.integers(0, 3).map(lambda kind: torch.randn((7, 3) if kind else (2,) * kind))
    | st.integers()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(values, st.integers(0, 600), st.integers(1, 8))
def test_a_bounded_text_is_the_whole_text_or_none(value: Any, most: int, block: int) -> None:
    whole = to_json(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("torchserve_neuron_lstm.handlers.formats.json_text._BLOCK", block)
        if len(whole) <= most:
            assert to_json(value, most) == whole
        else:
            with pytest.raises(ResponseTooLong):
                assert to_json(value, most) is None


NOW_MS = 1_700_000_000_000
turns = st.lists(
    st.builds(PendingRequest, st.floats(-50, 200), st.lists(st.integers(1, 9), min_size=1, max_size=3)), max_size=12
)


def work_ms(lengths: Any) -> float:
    """A call of 2 ms for each 4 sequences, and 1 ms for each timestep."""
    return 2.0 * -(-len(lengths) // 4) + float(sum(lengths))


@given(turns)
def test_whoever_is_computed_is_in_time_and_nobody_is_left_out_for_nothing(turns: list[PendingRequest]) -> None:
    dropped = late(turns, work_ms)
    kept = [turn for place, turn in enumerate(turns) if place not in dropped]

    total = work_ms([one for turn in kept for one in turn.lengths])
    assert all(0 < total <= turn.remaining_ms for turn in kept)
    if dropped:
        last = max((turns[place] for place in dropped), key=lambda turn: turn.remaining_ms)
        assert last.remaining_ms <= 0 or total + work_ms(last.lengths) > last.remaining_ms


@pytest.mark.parametrize(
    ("headers", "body_ms", "expected"),
    [
        ({}, None, 995.0),
        ({"accept": "*/*", "x-forwarded-for": "someone"}, None, 995.0),
        ({"X-Request-Timeout-Ms": "50"}, None, 45.0),
        ({"X-REQUEST-TIMEOUT-MS": "50"}, 20.0, 15.0),
        ({"x-request-deadline-ms": str(NOW_MS + 30)}, None, 30.0),
        ({"x-request-deadline-ms": str(NOW_MS - 30)}, None, -30.0),
        ({"x-request-deadline-ms": str(NOW_MS + 200_000)}, None, 995.0),
        ({"x-request-deadline-ms": str(NOW_MS + 30), "x-request-timeout-ms": "20"}, None, 15.0),
    ],
)
def test_the_nearest_deadline_counts_and_none_is_beyond_the_default(
    headers: dict[str, str], body_ms: float | None, expected: float
) -> None:
    assert remaining_ms(headers, body_ms, 1000.0, elapsed_ms=5.0, unix_ms=float(NOW_MS)) == expected


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("x-request-timeout-ms", "soon", "expected whole milliseconds, got 'soon'"),
        ("x-request-timeout-ms", "-1", "expected whole milliseconds"),
        ("x-request-timeout-ms", "9" * 400, "expected whole milliseconds"),
        ("x-request-deadline-ms", "\u0663", "expected whole milliseconds"),
        ("x-request-deadline-ms", str(NOW_MS + 300_001), "the clocks differ"),
        ("x-request-deadline-ms", str(NOW_MS // 1000), "the clocks differ"),
    ],
)
def test_a_deadline_that_cannot_be_meant_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        remaining_ms({name: value}, None, 1000.0, 0.0, float(NOW_MS))
    assert refused.value.status == 400
    assert len(refused.value.message) < 300


def test_a_late_request_is_refused_before_anything_is_computed_and_the_others_are_answered() -> None:
    service = service_of(make_manifest(), unix_clock=lambda: NOW_MS / 1000, clock=lambda: 0.0)
    past = {"x-request-deadline-ms": str(NOW_MS - 1)}
    rows: list[tuple[object, dict[str, str]]] = [([1, 2], {}), ([3, 4, 5], past), ([6], {"x-request-timeout-ms": "x"})]
    good, refused, bad = service.handle([RawRequest({"body": body}, headers) for body, headers in rows])

    assert (good.status, refused.status, bad.status) == (200, 504, 400)
    assert refused.headers == {"Retry-After": "1"}
    assert b'"type":"DeadlineExceeded"' in refused.body
    assert service.handle([RawRequest({"body": [3, 4, 5]}, past)])[0].status == 504


def test_the_wait_in_a_hosts_queue_counts_for_a_time_that_the_client_names() -> None:
    service = service_of(make_manifest(), clock=lambda: 0.0)
    rows = [RawRequest({"body": [1]}, {"x-request-timeout-ms": "50"}, waited) for waited in (40.0, 60.0)]

    assert [answer.status for answer in service.handle([*rows, RawRequest({"body": [1]}, {}, 1e9)])] == [200, 504, 200]
