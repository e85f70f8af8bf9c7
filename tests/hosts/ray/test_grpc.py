"""Archives on Ray Serve over gRPC, by Triton's client: values and refusals are those of REST."""

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_calls import WRONG, Wrong, broken_messages, call, client, equal_over_rest, infer, request, tensor
from host_archives import Archives, assert_scores_of_the_whole
from mixed_requests import frames_of
from tritonclient.utils import InferenceServerException

from torchserve_neuron_lstm.hosts.grpc.messages import message_class

from .conftest import Ports

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def opened(ray_ports: Ports) -> Iterator[triton.InferenceServerClient]:
    with client(ray_ports.grpc) as made:
        yield made


def test_tritons_client_finds_health_readiness_and_metadata(opened: triton.InferenceServerClient) -> None:
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
    frames = frames_of(length, length)[None]
    ids = np.random.default_rng(length).integers(0, 20, (1, length))
    flags = {"sequence_start": True, "sequence_end": True}

    assert equal_over_rest(ray_ports.http, ray_ports.grpc, "scorer", {"frames": frames})
    assert equal_over_rest(ray_ports.http, ray_ports.grpc, "tagger", {"ids": ids, "frames": frames})
    assert equal_over_rest(ray_ports.http, ray_ports.grpc, "stream", {"frames": frames}, sequence_id=length, **flags)


@pytest.mark.parametrize("session", [77, "a-name"])
def test_a_session_in_pieces_has_the_scores_of_the_whole(
    opened: triton.InferenceServerClient, archives: Archives, session: int | str
) -> None:
    frames, found = frames_of(21, 1), []
    for start, end in ((0, 4), (4, 9), (9, 21)):
        flags = {"sequence_start": start == 0, "sequence_end": end == 21}
        piece = [tensor("frames", frames[None, start:end])]
        found.append(opened.infer("stream", piece, sequence_id=session, **flags).as_numpy("scores")[0])
    assert_scores_of_the_whole(archives, frames, found)


@pytest.mark.parametrize("wrong", WRONG, ids=[one.change for one in WRONG])
def test_a_refusal_has_a_code_a_type_and_a_message(ray_ports: Ports, wrong: Wrong) -> None:
    found = infer(ray_ports.grpc, request(**wrong.fields))

    assert (found.code, found.trailing.get("error-type")) == (wrong.code, wrong.kind)
    assert wrong.told in found.details
    assert ("retry-after" in found.trailing) == (wrong.change == "too late")


def test_broken_messages_end_with_a_code_and_the_replica_lives(ray_ports: Ports) -> None:
    codes = {call(ray_ports.grpc, "ModelInfer", content).code for content in broken_messages(60)}

    assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "ABORTED"}
    assert call(ray_ports.grpc, "ModelMetadata", b"\xff").code == "INVALID_ARGUMENT"
    assert infer(ray_ports.grpc, request()).code == "OK"
    assert message_class("ServerReadyResponse").FromString(call(ray_ports.grpc, "ServerReady", b"").message).ready
