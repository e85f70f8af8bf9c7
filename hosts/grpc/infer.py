"""Requests and responses of ModelInfer, as bodies of V2 over REST and back.

The service behind it reads such bodies only, so that values and errors are the same over both. A tensor's numbers are
bytes in the message and in the body: nothing of them is parsed here, unless the client sent typed contents.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from ...handlers.formats.raw_request import RawRequest
from ...handlers.formats.tensors import MOST_DIMENSIONS
from ...handlers.responses import (
    JSON_LENGTH_HEADER,
    TRUNCATED,
    RawResponse,
    RequestError,
    abbreviate,
    http_headers,
    invalid,
)
from .messages import PARAMETER_CHOICE, message_class

Metadata = Iterable[tuple[str, object]]
"""Names and values, as the client sent them."""
_CONTENTS: Mapping[str, tuple[str, str]] = {
    "BOOL": ("bool_contents", "?"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
}
"""The field of typed contents for each datatype, and the letter by which `struct` writes its numbers."""
_BODY_HEADERS = ("accept", "content-length", "content-type", "describe", "explain", JSON_LENGTH_HEADER.lower())
"""Headers of REST that describe a body, or request another response: a client's metadata has none of them."""
_NOT_SERVED = ("shared_memory_region",)
_ANSWER_PARAMETERS = ("binary_data", "binary_data_output", "binary_data_size")
"""Parameters of REST by which tensors are bytes. Over gRPC they always are."""
_BLOCK = 1 << 14
"""Numbers that are converted at once: other threads run in between."""
_NESTED = (5, 6)
"""Numbers of the fields of a request that have fields of their own: inputs and outputs."""
_SIZES = {1: 8, 5: 4}
"""Bytes of a value of a fixed size, by the kind of its field; 0 is a number, 2 has its size before it."""
_FIELDS_OF_TENSOR = 32
"""Fields of a tensor with its contents and parameters, of which clients write about 6."""


def parse(name: str, content: bytes, most_tensors: int = 0) -> Any:
    """Return a request message.

    Raises `RequestError`: 400, the bytes are no such message; 413, one with far too many fields.
    """
    try:
        _check_fields(content, _FIELDS_OF_TENSOR * (32 + most_tensors))
        return message_class(name).FromString(content)
    except (DecodeError, IndexError):
        raise RequestError("MalformedBody", f"expected the bytes of a {name}, they cannot be parsed") from None


def _check_fields(content: bytes, most: int) -> None:
    """Count the fields of a request's bytes, of which each would become an object of up to 90 bytes.

    Raises `RequestError`: 413, they are more than `most`.
    Raises `IndexError`: the bytes are no message.
    """
    found, pending = 0, [(0, len(content), True)]
    while pending:
        at, end, is_request = pending.pop()
        while at < end:
            found += 1
            if found > most:
                raise RequestError("BodyTooLarge", f"the message has more than {most} fields: send fewer tensors")
            tag, at = _varint(content, at)
            kind = tag & 7
            size, at = _varint(content, at) if kind in (0, 2) else (_SIZES.get(kind, 0), at)
            if is_request and kind == 2 and tag >> 3 in _NESTED:
                pending.append((at, at + size, False))
            at += size if kind else 0


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of at most ten bytes, and where it ends."""
    value = 0
    for index in range(10):
        value |= (content[at + index] & 0x7F) << 7 * index
        if content[at + index] < 0x80:
            return value, at + index + 1
    raise IndexError


def rest_request(message: Any, metadata: Metadata, most_bytes: int) -> RawRequest:
    """Return the V2 request over REST that asks for the same as a ModelInferRequest, for outputs as bytes.

    Raises `RequestError`: 400, contents are missing, given twice or in a wrong field; 413, they have more than
    `most_bytes`.
    """
    _check_raw_contents(message)
    inputs, contents, left = [], list[bytes](), most_bytes
    for index, tensor in enumerate(message.inputs):
        content = message.raw_input_contents[index] if message.raw_input_contents else _typed(tensor, index, left)
        left -= len(content)
        contents.append(content)
        parameters = {**_parameters(tensor.parameters), "binary_data_size": len(content)}
        entry = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        inputs.append({**entry, "parameters": parameters})
    outputs = [{"name": one.name, "parameters": _parameters(one.parameters)} for one in message.outputs]
    parameters = {**_parameters(message.parameters), "binary_data_output": True}
    whole = {"id": message.id, "parameters": parameters, "inputs": inputs, "outputs": outputs}
    text = json.dumps(whole, separators=(",", ":")).encode()
    headers = {name: value for name, value in metadata if isinstance(value, str) and name.lower() not in _BODY_HEADERS}
    return RawRequest({"body": b"".join([text, *contents])}, {**headers, JSON_LENGTH_HEADER: str(len(text))})


def infer_response(response: RawResponse) -> bytes:
    """Return the ModelInferResponse that has the content of a V2 response with bytes.

    Raises `RequestError`: the response is an error.
    """
    if response.status != 200:
        error, retry = json.loads(response.body), response.headers.get("Retry-After")
        raise RequestError(error["type"], error["message"], None if retry is None else float(retry), response.status)
    text_bytes = int(http_headers(response)[1][JSON_LENGTH_HEADER])
    told, tail = json.loads(response.body[:text_bytes]), memoryview(response.body)[text_bytes:]
    message = message_class("ModelInferResponse")()
    message.model_name, message.model_version, message.id = told["model_name"], told["model_version"], told["id"]
    for name, value in (told.get("parameters") or {}).items():
        _set_parameter(message.parameters[name], value)
    if TRUNCATED.items() <= response.headers.items():
        message.parameters["truncated"].bool_param = True
    start = 0
    for entry in told["outputs"]:
        message.outputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
        end = start + entry["parameters"]["binary_data_size"]
        message.raw_output_contents.append(bytes(tail[start:end]))
        start = end
    content: bytes = message.SerializeToString()
    return content


def _check_raw_contents(message: Any) -> None:
    raw, needed = len(message.raw_input_contents), len(message.inputs)
    for index, tensor in enumerate(message.inputs):
        if unserved := [name for name in _NOT_SERVED if name in tensor.parameters]:
            raise invalid(f"inputs[{index}]: {unserved[0]} is not served: send the numbers")
        if raw and tensor.contents.ListFields():
            raise invalid(f"inputs[{index}]: expected either contents or raw_input_contents, got both")
        if len(tensor.shape) > MOST_DIMENSIONS:
            raise invalid(f"inputs[{index}]: expected at most {MOST_DIMENSIONS} sizes, got {len(tensor.shape)}")
    if raw not in (0, needed):
        raise invalid(f"raw_input_contents: expected {needed} entries, one for each of inputs, or none; got {raw}")


def _typed(tensor: Any, index: int, most_bytes: int) -> bytes:
    """Return the numbers of typed contents as bytes, in little-endian order."""
    where, datatype = f"inputs[{index}]", tensor.datatype
    if datatype not in _CONTENTS:
        raise invalid(f"{where}: datatype {abbreviate(datatype)} has no typed contents here: use raw_input_contents")
    field, letter = _CONTENTS[datatype]
    if others := [found.name for found, _ in tensor.contents.ListFields() if found.name != field]:
        raise invalid(f"{where}: expected the numbers of {datatype} in {field}, got {others[0]}")
    numbers = getattr(tensor.contents, field)
    if len(numbers) * struct.calcsize(f"<{letter}") > most_bytes:
        raise RequestError("BodyTooLarge", f"{where}: {len(numbers)} numbers of {datatype} are more than are left")
    blocks = (numbers[start : start + _BLOCK] for start in range(0, len(numbers), _BLOCK))
    try:
        return b"".join(struct.pack(f"<{len(block)}{letter}", *block) for block in blocks)
    except struct.error:
        raise invalid(f"{where}: {field} has a number that is out of the range of {datatype}") from None


def _parameters(given: Mapping[str, Any]) -> dict[str, object]:
    chosen = {name: one.WhichOneof(PARAMETER_CHOICE) for name, one in given.items() if name not in _ANSWER_PARAMETERS}
    return {name: None if choice is None else getattr(given[name], choice) for name, choice in chosen.items()}


def _set_parameter(parameter: Any, value: object) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, str):
        parameter.string_param = value
