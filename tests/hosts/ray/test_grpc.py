"""Archives on Ray Serve over gRPC, by Triton's client: values and refusals are those of REST."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_calls import WRONG, Wrong, broken_messages, call, client, equal_over_rest, infer, request, tensor
from host_archives import Archives
from mixed_requests import frames_of
from tritonclient.utils import InferenceServerException

from torchserve_neuron_lstm import open_archive
from torchserve_neuron_lstm.hosts.grpc.messages import message_class

from .conftest import Ports

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def opened(ray_ports: Ports) -> Iterator[triton.InferenceServerClient]:
    with client(ray_ports.grpc) as made:
        yield made


def test_tritons_client_finds_health_readiness_and_metadata(opened: triton.InferenceServerClient) -> None:
    """An unknown model is not ready, as on Triton."""
    assert opened.is_server_live()
    assert opened.is_server_ready()
    assert opened.is_model_ready("scorer")
    assert opened.is_model_ready("scorer", "1.0")
    assert not opened.is_model_ready("scorer", "2.0")
    assert not opened.is_model_ready("nothing")
    assert opened.get_server_metadata().name == "torchserve-neuron-lstm"
    told = opened.get_model_metadata("tagger")
    assert [(one.name, one.datatype, [*one.shape]) for one in told.inputs] == [
        ("ids", "INT64", [-1, -1]),
        ("frames", "FP32", [-1, -1, 3]),
    ]
    with pytest.raises(InferenceServerException, match="Model not found: nothing"):
        opened.get_model_metadata("nothing")


@pytest.mark.parametrize("length", [1, 9, 16])
def test_outputs_are_those_of_rest_bit_for_bit(ray_ports: Ports, length: int) -> None:
    """Three models have equal ones."""
    frames = frames_of(length, length)[None]
    ids = np.random.default_rng(length).integers(0, 20, (1, length))
    flags = {"sequence_start": True, "sequence_end": True}

    assert equal_over_rest(ray_ports.http, ray_ports.grpc, "scorer", {"frames": frames})
    assert equal_over_rest(ray_ports.http, ray_ports.grpc, "tagger", {"ids": ids, "frames": frames})
    assert equal_over_rest(ray_ports.http, ray_ports.grpc, "stream", {"frames": frames}, sequence_id=length, **flags)


def test_outputs_are_chosen_by_name_and_an_id_is_repeated(opened: triton.InferenceServerClient) -> None:
    """In the request's order."""
    frames, ids = frames_of(3, 0)[None], np.array([[1, 2, 3]])
    wanted = [triton.InferRequestedOutput(name) for name in ("label", "tags")]
    inputs = [tensor("ids", ids), tensor("frames", frames)]

    found = opened.infer("tagger", inputs, outputs=wanted, request_id="17", model_version="1.0")

    response = found.get_response()
    assert (response.id, response.model_name, response.model_version) == ("17", "tagger", "1.0")
    assert [one.name for one in response.outputs] == ["label", "tags"]


def test_typed_contents_are_the_same_numbers(ray_ports: Ports) -> None:
    """As clients without a helper for bytes send them."""
    frames = frames_of(4, 0)
    typed = {"name": "frames", "datatype": "FP32", "shape": [1, 4, 3], "contents": {"fp32_contents": frames.ravel()}}

    found = infer(ray_ports.grpc, request(inputs=[typed], raw_input_contents=[]))

    assert found.code == "OK"
    assert found.message == infer(ray_ports.grpc, request()).message


@pytest.mark.parametrize("session", [77, "a-name"])
def test_a_session_in_pieces_has_the_scores_of_the_whole(
    opened: triton.InferenceServerClient, archives: Archives, session: int | str
) -> None:
    """Its id is a number or a string."""
    frames, found = frames_of(21, 1), []
    for start, end in ((0, 4), (4, 9), (9, 21)):
        flags = {"sequence_start": start == 0, "sequence_end": end == 21}
        piece = [tensor("frames", frames[None, start:end])]
        found.append(opened.infer("stream", piece, sequence_id=session, **flags).as_numpy("scores")[0])
    with open_archive(archives.path("scorer"), threads=1) as model:
        (whole,) = model.predict([frames], as_numpy=True)

    assert isinstance(whole, np.ndarray)
    np.testing.assert_allclose(np.concatenate(found), whole, atol=1e-5)


def test_a_piece_at_a_wrong_step_is_aborted_and_one_of_an_unknown_session_is_not_found(ray_ports: Ports) -> None:
    """Session fields are parameters, or metadata with the names of REST's headers."""
    session = {"sequence_id": {"string_param": "steps"}}
    first = infer(ray_ports.grpc, request("stream", parameters={**session, "sequence_start": {"bool_param": True}}))
    gap = infer(ray_ports.grpc, request("stream", parameters={**session, "sequence_step": {"int64_param": 9}}))
    next_one = infer(
        ray_ports.grpc, request("stream", parameters=session), metadata=[("ts-request-sequence-step", "4")]
    )
    unknown = infer(ray_ports.grpc, request("stream", parameters={"sequence_id": {"int64_param": 987654}}))

    assert first.code == "OK", first
    assert (gap.code, gap.trailing["error-type"]) == ("ABORTED", "StepGap")
    assert next_one.code == "OK", next_one
    assert (unknown.code, unknown.trailing["error-type"]) == ("NOT_FOUND", "SessionUnknown")


@pytest.mark.parametrize("wrong", WRONG, ids=[one.change for one in WRONG])
def test_a_refusal_has_a_code_a_type_and_a_message(ray_ports: Ports, wrong: Wrong) -> None:
    """The type is in the trailing metadata."""
    found = infer(ray_ports.grpc, request(**wrong.fields))

    assert (found.code, found.trailing.get("error-type")) == (wrong.code, wrong.kind)
    assert wrong.told in found.details
    assert ("retry-after" in found.trailing) == (wrong.change == "too late")


def test_broken_messages_end_with_a_code_and_the_replica_lives(ray_ports: Ports) -> None:
    """None of them is an internal error."""
    codes = {call(ray_ports.grpc, "ModelInfer", content).code for content in broken_messages(60)}

    assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "ABORTED"}
    assert call(ray_ports.grpc, "ModelMetadata", b"\xff").code == "INVALID_ARGUMENT"
    assert infer(ray_ports.grpc, request()).code == "OK"
    assert message_class("ServerReadyResponse").FromString(call(ray_ports.grpc, "ServerReady", b"").message).ready
