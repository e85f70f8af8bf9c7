import json
import logging
from itertools import count
from typing import Any

import pytest
from fake_model import FRAMES, IDS, SUMS, TOTAL, FakeModel, make_manifest

from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.handlers.formats import Codec, make_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import Labels, ModelIdentity
from torchserve_neuron_lstm.handlers.metrics import BatchMetrics
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.handlers.service import Service

IDENTITY = ModelIdentity("model", "1.0")
TENSOR = {"name": "ids", "shape": [2], "datatype": "INT64", "data": [1, 2]}


def make_service(manifest: Manifest | None = None, labels: Labels | None = None, **settings: Any) -> Service:
    manifest = manifest or make_manifest()
    return Service(FakeModel(manifest), make_codec(manifest, IDENTITY, labels), **settings)


def row(value: object, **headers: str) -> RawRequest:
    return RawRequest({"body": value}, headers)


def ask(service: Service, *values: object) -> list[tuple[int, Any]]:
    return [told(response) for response in service.handle([row(value, url_path="") for value in values])]


def told(response: RawResponse) -> tuple[int, Any]:
    assert response.content_type == "application/json"
    return response.status, json.loads(response.body)


def test_every_row_gets_the_answer_it_gets_alone_whoever_else_is_in_the_batch() -> None:
    service = make_service()
    bodies = [[i, *range(i % 7)] for i in range(11)]

    together = ask(service, *bodies)

    assert [ask(service, body)[0] for body in bodies] == together
    assert together[5] == (200, [5.0, 5.0, 6.0, 8.0, 11.0, 15.0])
    assert service.handle([]) == []


def test_a_sequence_or_an_instance_that_fails_costs_its_own_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    answers = ask(make_service(), [1] * 8, [66] * 3, *([2] * 8 for _ in range(3)))

    assert [status for status, _ in answers] == [200, 500, 200, 200, 200]
    assert answers[1][1]["type"] == "InternalError"
    assert "kernel" not in answers[1][1]["message"]
    assert "a kernel failed" in caplog.text
    assert len(caplog.records) == 1

    answers = ask(make_service(), {"instances": [[1], [66], [2]]}, {"instances": [[3], [4, 1]]})
    assert [status for status, _ in answers] == [500, 200]
    assert answers[1][1] == {"predictions": [[3.0], [4.0, 5.0]]}


def test_the_response_to_a_request_that_was_cut_says_so_in_a_header() -> None:
    cut, bodies = {"X-Request-Truncated": "true"}, ([1] * 8, [1] * 9, {"instances": [[1], [1] * 9]}, [66] * 9)

    responses = make_service(make_manifest(overflow="truncate")).handle([row(body) for body in bodies])

    assert [(one.status, dict(one.headers)) for one in responses] == [(200, {}), (200, cut), (200, cut), (500, {})]


def test_each_batch_is_reported_once_with_what_it_came_to() -> None:
    reported: list[BatchMetrics] = []
    service = make_service(report=reported.append, clock=map(float, count()).__next__)

    service.handle([RawRequest({}, {"describe": "True"})])  # from TorchServe, not from a client: it is not counted
    ask(service, b"[1, 2]", b"{", b'{"instances": [[1], [2, 3, 4]]}', b"[1, 1, 1, 1, 1, 1, 1, 1, 1]", b"[")

    (counts,) = reported
    assert (counts.requests, counts.sequences, counts.stats.lengths) == (5, 3, (2, 1, 3))
    assert counts.rejected == {"MalformedBody": 2, "SequenceTooLong": 1}
    assert counts.stats.real_timesteps == 6
    assert counts.padded_timesteps == counts.stats.plans[0].computed_timesteps - 6
    assert (counts.stats.plan_seconds, counts.stats.engine_seconds, counts.seconds) == (1.0, 1.0, 5.0)


def test_a_failure_while_planning_or_encoding_is_a_500_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exception reaches TorchServe."""
    service = make_service()
    with monkeypatch.context() as patch:
        patch.setattr(FakeModel, "plan", lambda *_: 1 / 0)
        assert ask(service, [1], b"{")[0][0] == 500
    monkeypatch.setattr(Codec, "encode", lambda *_: 1 / 0)
    assert [status for status, _ in ask(service, [1], b"{", [2])] == [500, 400, 500]


def test_several_outputs_are_an_object_by_name() -> None:
    service = make_service(make_manifest((IDS, FRAMES), (SUMS, TOTAL)))

    ((status, body),) = ask(service, {"ids": [1, 2], "frames": [[1, 1], [0.5, 0]]})

    assert (status, body) == (200, {"sums": [3.0, 5.5], "state.0": [5.5, 5.5, 5.5]})


def test_v2_is_answered_by_one_entry_for_each_sequence_or_one_tensor() -> None:
    entry = {"name": "sums", "datatype": "FP32"}
    envelope = {"model_name": "model", "model_version": "1.0"}
    ragged = {"id": "a", "inputs": [TENSOR, TENSOR | {"shape": [1], "data": [5]}]}
    batched = {"inputs": [TENSOR | {"shape": [2, 1]}]}

    answers = ask(make_service(), ragged, batched)

    outputs = [entry | {"shape": [2], "data": [1.0, 3.0]}, entry | {"shape": [1], "data": [5.0]}]
    assert answers[0] == (200, envelope | {"id": "a", "outputs": outputs})
    assert answers[1] == (200, envelope | {"id": "", "outputs": [entry | {"shape": [2, 1], "data": [1.0, 2.0]}]})


@pytest.mark.parametrize(
    "body",
    [
        {"model_name": "model", "id": "9", "inputs": []},
        {"model_name": "model", "id": "9", "inputs": [1]},
        {"model_name": "model", "id": "9", "inputs": [TENSOR | {"name": "x"}]},
        {"model_name": "model", "id": "9", "inputs": [{"name": "ids", "shape": [2], "datatype": "FP16"}]},
        {"model_name": "model", "id": "9", "inputs": [TENSOR | {"data": [66, 1]}]},
    ],
)
def test_an_error_of_a_v2_request_comes_in_a_v2_response(body: object) -> None:
    """TorchServe's gRPC for V2 loses its worker on a body without these keys."""
    for sent in (body, json.dumps(body).encode()):
        ((status, answer),) = ask(make_service(), sent)

        assert status in (400, 500)
        assert (answer["model_name"], answer["model_version"], answer["id"]) == ("model", "1.0", "9")
        assert answer["outputs"] == []
        assert answer["message"] == answer["error"]


def test_an_answer_that_is_not_finite_is_null_in_json_and_an_error_in_v2() -> None:
    """V2's numbers cannot represent it."""
    manifest = make_manifest(inputs=(FRAMES,))
    frames = [[3e38, 3e38]]
    tensor = {"name": "frames", "shape": [1, 2], "datatype": "FP32", "data": frames[0]}

    plain, v2 = ask(make_service(manifest), frames, {"inputs": [tensor]})

    assert plain == (200, [None])
    assert (v2[0], v2[1]["type"]) == (500, "AnswerNotFinite")


def test_class_names_stand_for_class_numbers_in_json_alone() -> None:
    service = make_service(make_manifest(outputs=(TOTAL,)), Labels(("red", "green", "blue")))

    plain, v1, v2 = ask(service, [1], {"instances": [[1]]}, {"inputs": [TENSOR]})

    assert plain[1] == {name: pytest.approx(1 / 3) for name in ("red", "green", "blue")}
    assert v1[1] == {"predictions": [plain[1]]}
    assert v2[1]["outputs"][0]["data"] == [3.0, 3.0, 3.0]


def test_an_answer_larger_than_torchserve_sends_is_refused_alone() -> None:
    """Otherwise the whole batch would lose its worker."""
    answers = ask(make_service(max_response_bytes=30), [1], [1, 2, 3, 4, 5, 6, 7, 8], [2])

    assert [status for status, _ in answers] == [200, 413, 200]
    assert answers[1][1]["type"] == "AnswerTooLarge"


@pytest.mark.parametrize("name", ["describe", "Describe", "DESCRIBE"])
def test_a_description_is_for_requests_without_a_body(name: str) -> None:
    service = make_service(description={"backend": "fake"})
    asked, spoofed = RawRequest({}, {"Host": "x", name: "True"}), row([1], **{name: "True"})

    first, (status, description), last = (told(one) for one in service.handle([spoofed, asked, row([2])]))
    assert (status, description["backend"]) == (200, "fake")
    assert (first, last) == ((200, [1.0]), (200, [2.0]))


def test_bodies_and_headers_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """They belong to the clients."""
    caplog.set_level(logging.DEBUG)
    secret = "c0ffee-secret"

    make_service().handle([row(secret.encode(), authorization=secret), row([66], authorization=secret)])

    assert secret not in caplog.text
