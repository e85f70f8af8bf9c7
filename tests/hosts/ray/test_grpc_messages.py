"""The table of messages beside the code that is generated for Triton's client."""

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from torchserve_neuron_lstm.hosts.grpc.messages import message_class
from torchserve_neuron_lstm.hosts.grpc.methods import METHODS, SERVICE

MESSAGES = [f"{method}{end}" for method in METHODS for end in ("Request", "Response")]


def fields(message: Any) -> dict[str, Any]:
    found = {
        one.name: (
            one.number,
            one.type,
            one.is_repeated,
            one.has_presence,
            one.message_type and one.message_type.full_name,
            one.containing_oneof and one.containing_oneof.name,
            bool(one.message_type and one.message_type.GetOptions().map_entry),
        )
        for one in message.fields
    }
    return found | {inner.name: fields(inner) for inner in message.nested_types}


@pytest.mark.parametrize("name", [*MESSAGES, "InferParameter", "InferTensorContents"])
def test_a_message_has_the_fields_of_the_protocol(name: str) -> None:
    theirs = service_pb2.DESCRIPTOR.message_types_by_name[name]

    assert fields(message_class(name).DESCRIPTOR) == fields(theirs)
    assert message_class(name).DESCRIPTOR.full_name == theirs.full_name


def test_the_methods_are_of_the_service_and_take_one_message() -> None:
    """Others of the service are Triton's own."""
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]

    assert theirs.full_name == SERVICE
    for method in METHODS:
        found = theirs.methods_by_name[method]
        assert (found.input_type.name, found.output_type.name) == (f"{method}Request", f"{method}Response")
        assert not found.client_streaming
        assert not found.server_streaming


def test_messages_of_both_are_the_same_bytes() -> None:
    """In one process, which two generated modules could not be in."""
    given = {"model_name": "m", "inputs": [{"name": "x", "contents": {"fp32_contents": [1, 2]}}], "id": "1"}

    assert (
        message_class("ModelInferRequest")(**given).SerializeToString()
        == service_pb2.ModelInferRequest(**given).SerializeToString()
    )
