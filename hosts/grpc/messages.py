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
_Field = tuple[int, str]
"""Number and type. Before the type: `repeated`, `map` from strings, or `one` of the fields of which one is set."""
_TENSOR_METADATA: Mapping[str, _Field] = {
    "name": (1, "string"),
    "datatype": (2, "string"),
    "shape": (3, "repeated int64"),
}
_TENSOR: Mapping[str, _Field] = {
    **_TENSOR_METADATA,
    "parameters": (4, "map InferParameter"),
    "contents": (5, "InferTensorContents"),
}
_MODEL_VERSION: Mapping[str, _Field] = {"name": (1, "string"), "version": (2, "string")}
_MESSAGES: Mapping[str, Mapping[str, _Field]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": (1, "bool")},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": (1, "bool")},
    "ModelReadyRequest": _MODEL_VERSION,
    "ModelReadyResponse": {"ready": (1, "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {**_MODEL_VERSION, "extensions": (3, "repeated string")},
    "ModelMetadataRequest": _MODEL_VERSION,
    "ModelMetadataResponse": {
        "name": (1, "string"),
        "versions": (2, "repeated string"),
        "platform": (3, "string"),
        "inputs": (4, "repeated ModelMetadataResponse.TensorMetadata"),
        "outputs": (5, "repeated ModelMetadataResponse.TensorMetadata"),
    },
    "ModelMetadataResponse.TensorMetadata": _TENSOR_METADATA,
    "ModelInferRequest": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, "map InferParameter"),
        "inputs": (5, "repeated ModelInferRequest.InferInputTensor"),
        "outputs": (6, "repeated ModelInferRequest.InferRequestedOutputTensor"),
        "raw_input_contents": (7, "repeated bytes"),
    },
    "ModelInferRequest.InferInputTensor": _TENSOR,
    "ModelInferRequest.InferRequestedOutputTensor": {"name": (1, "string"), "parameters": (2, "map InferParameter")},
    "ModelInferResponse": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, "map InferParameter"),
        "outputs": (5, "repeated ModelInferResponse.InferOutputTensor"),
        "raw_output_contents": (6, "repeated bytes"),
    },
    "ModelInferResponse.InferOutputTensor": _TENSOR,
    "InferParameter": {
        "bool_param": (1, "one bool"),
        "int64_param": (2, "one int64"),
        "string_param": (3, "one string"),
        "double_param": (4, "one double"),
        "uint64_param": (5, "one uint64"),
    },
    "InferTensorContents": {
        "bool_contents": (1, "repeated bool"),
        "int_contents": (2, "repeated int32"),
        "int64_contents": (3, "repeated int64"),
        "uint_contents": (4, "repeated uint32"),
        "uint64_contents": (5, "repeated uint64"),
        "fp32_contents": (6, "repeated float"),
        "fp64_contents": (7, "repeated double"),
        "bytes_contents": (8, "repeated bytes"),
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
        for field, (number, written) in fields.items():
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
_ERROR_TYPE = "error-type"
"""Trailing metadata: the word that is `type` in an error body of REST."""
_RETRY_AFTER = "retry-after"
"""Trailing metadata: seconds after which the same request may succeed, as the header of REST has them."""


class GrpcAnswer(NamedTuple):
    """The answer to one call."""

    message: bytes = b""
    """The response message; empty for an error."""
    code: str = "OK"
    details: str = ""
    trailing: tuple[tuple[str, str], ...] = ()


def refused(error: RequestError) -> GrpcAnswer:
    """Return the answer to a call that is refused."""
    retry = () if error.retry_after is None else ((_RETRY_AFTER, str(ceil(error.retry_after))),)
    return GrpcAnswer(code=code_of(error.status), details=error.message, trailing=((_ERROR_TYPE, error.kind), *retry))


def code_of(status: int) -> str:
    """Return the code that stands for an HTTP status.

    >>> code_of(413), code_of(418), code_of(502)
    ('INVALID_ARGUMENT', 'INVALID_ARGUMENT', 'INTERNAL')
    """
    return _CODES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
