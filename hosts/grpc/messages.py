"""Messages of the Open Inference Protocol over gRPC.

They are made when this module is imported, in a separate pool of descriptors: generated code registers its
messages for the whole process, so that two clients or servers of the protocol cannot be in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ...handlers.responses import RequestError

PACKAGE = "inference"
_Fields = Mapping[str, str]
"""Types of fields. Before the type: `repeated`, `map` from strings, or `one` of the fields of which one is set.

The order counts: the protocol numbers the fields of a message from 1 on.
"""
_TENSOR_METADATA: _Fields = {"name": "string", "datatype": "string", "shape": "repeated int64"}
_TENSOR: _Fields = {**_TENSOR_METADATA, "parameters": "map InferParameter", "contents": "InferTensorContents"}
_MODEL_VERSION: _Fields = {"name": "string", "version": "string"}
_INFER: _Fields = {
    "model_name": "string",
    "model_version": "string",
    "id": "string",
    "parameters": "map InferParameter",
}
_MESSAGES: Mapping[str, _Fields] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": "bool"},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": "bool"},
    "ModelReadyRequest": _MODEL_VERSION,
    "ModelReadyResponse": {"ready": "bool"},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {**_MODEL_VERSION, "extensions": "repeated string"},
    "ModelMetadataRequest": _MODEL_VERSION,
    "ModelMetadataResponse": {
        "name": "string",
        "versions": "repeated string",
        "platform": "string",
        "inputs": "repeated ModelMetadataResponse.TensorMetadata",
        "outputs": "repeated ModelMetadataResponse.TensorMetadata",
    },
    "ModelMetadataResponse.TensorMetadata": _TENSOR_METADATA,
    "ModelInferRequest": {
        **_INFER,
        "inputs": "repeated ModelInferRequest.InferInputTensor",
        "outputs": "repeated ModelInferRequest.InferRequestedOutputTensor",
        "raw_input_contents": "repeated bytes",
    },
    "ModelInferRequest.InferInputTensor": _TENSOR,
    "ModelInferRequest.InferRequestedOutputTensor": {"name": "string", "parameters": "map InferParameter"},
    "ModelInferResponse": {
        **_INFER,
        "outputs": "repeated ModelInferResponse.InferOutputTensor",
        "raw_output_contents": "repeated bytes",
    },
    "ModelInferResponse.InferOutputTensor": _TENSOR,
    "ModelStreamInferResponse": {"error_message": "string", "infer_response": "ModelInferResponse"},
    "InferParameter": {
        "bool_param": "one bool",
        "int64_param": "one int64",
        "string_param": "one string",
        "double_param": "one double",
        "uint64_param": "one uint64",
    },
    "InferTensorContents": {
        "bool_contents": "repeated bool",
        "int_contents": "repeated int32",
        "int64_contents": "repeated int64",
        "uint_contents": "repeated uint32",
        "uint64_contents": "repeated uint64",
        "fp32_contents": "repeated float",
        "fp64_contents": "repeated double",
        "bytes_contents": "repeated bytes",
    },
}
"""Fields of each message, by name. A message inside another one has that one's name before its own."""
PARAMETER_CHOICE = "parameter_choice"
"""The field of an InferParameter that is set is found by this name."""
_NUMBERS = descriptor_pb2.FieldDescriptorProto


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="open_inference_grpc.proto", package=PACKAGE, syntax="proto3")
    made: dict[str, Any] = {}
    for name, fields in _MESSAGES.items():
        outer, _, own = name.rpartition(".")
        message = made[name] = (made[outer].nested_type if outer else file.message_type).add(name=own)
        for number, (field, written) in enumerate(fields.items(), start=1):
            _add_field(message, name, field, number, written)
    return file


def _add_field(message: Any, path: str, name: str, number: int, written: str) -> None:
    label, _, kind = written.rpartition(" ")
    many = _NUMBERS.LABEL_REPEATED if label in ("repeated", "map") else _NUMBERS.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=many)
    if label == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "key", 1, "string")
        _add_field(entry, "", "value", 2, kind)
        kind = f"{path}.{entry.name}"
    if label == "one":
        if not message.oneof_decl:
            message.oneof_decl.add(name=PARAMETER_CHOICE)
        field.oneof_index = 0
    if kind[0].isupper():
        field.type, field.type_name = _NUMBERS.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = _NUMBERS.Type.Value(f"TYPE_{kind.upper()}")


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_described())


def message_class(name: str) -> Any:
    r"""Return the class of a message, by its name in the protocol.

    >>> message_class("ServerLiveResponse")(live=True).SerializeToString()
    b'\x08\x01'
    """
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


_CODES: Mapping[int, str] = {
    404: "NOT_FOUND",
    409: "ABORTED",
    410: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    507: "RESOURCE_EXHAUSTED",
}


class GrpcAnswer(NamedTuple):
    """The answer to one call."""

    message: bytes = b""
    """The response message; empty for an error."""
    code: str = "OK"
    details: str = ""
    trailing: tuple[tuple[str, str], ...] = ()


def refused(error: RequestError) -> GrpcAnswer:
    """Return the answer to a call that is refused."""
    retry = () if error.retry_after is None else (("retry-after", str(ceil(error.retry_after))),)
    return GrpcAnswer(code=code_of(error.status), details=error.message, trailing=(("error-type", error.kind), *retry))


def code_of(status: int) -> str:
    """Return the code that stands for an HTTP status.

    >>> code_of(413), code_of(418), code_of(502)
    ('INVALID_ARGUMENT', 'INVALID_ARGUMENT', 'INTERNAL')
    """
    return _CODES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
