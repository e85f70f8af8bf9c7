"""The binary tensor data of the Open Inference Protocol, which follows the JSON of a body.

The header `Inference-Header-Content-Length` has the number of bytes of the JSON. Each entry of `inputs` whose
parameters have a `binary_data_size` has so many of the bytes after it, in the order of the entries; numbers are in
little-endian byte order, which every host of an engine has (Triton Inference Server: the binary tensor data extension).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ...bucketing.padding import item_bytes, torch_dtype
from ...bucketing.shapes import DType, TensorSpec
from ..responses import JSON_LENGTH_HEADER, RequestError, abbreviate, invalid, malformed
from .tensors import invalid_input

DATATYPES: Mapping[DType, str] = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16",
    "int64": "INT64", "int32": "INT32", "int16": "INT16", "int8": "INT8", "uint8": "UINT8", "bool": "BOOL",
}  # fmt: skip
"""The protocol's name of each dtype."""
_READ: Mapping[str, torch.dtype] = {name: getattr(torch, dtype) for dtype, name in DATATYPES.items()} | {
    "UINT16": torch.int16, "UINT32": torch.int32, "UINT64": torch.int64,
}  # fmt: skip
"""The dtype that the bytes are read as: an old torch has no wide unsigned integers."""
_WIDENED = {"UINT16": (torch.int32, 0xFFFF), "UINT32": (torch.int64, 0xFFFFFFFF)}
_MOST_ENTRIES = 1 << 16
"""Most entries of a request; checked before the model's own limit."""
_SIZE = "binary_data_size"


class RawData(NamedTuple):
    """The data of one entry as bytes."""

    content: memoryview


def with_raw_data(value: object, tail: memoryview) -> object:
    """Return a V2 request in which each entry with a `binary_data_size` has its bytes as `data`.

    >>> entry = {"name": "ids", "parameters": {"binary_data_size": 2}}
    >>> found = with_raw_data({"inputs": [entry]}, memoryview(b"xy"))
    >>> bytes(found["inputs"][0]["data"].content)
    b'xy'

    Raises `RequestError`: 400, the sizes do not fit the bytes; 413, there are very many entries.
    """
    entries = value.get("inputs") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(entries, list):
        raise malformed(f"{JSON_LENGTH_HEADER} is for a body in V2: an object with a list of inputs")
    if len(entries) > _MOST_ENTRIES:
        raise RequestError(
            "TooManySequences",
            f"inputs has {len(entries)} entries, with binary tensors a request may have at most {_MOST_ENTRIES}",
        )
    read, start = [], 0
    for index, entry in enumerate(entries):
        size = _binary_size(entry, index)
        if size is None:
            read.append(entry)
            continue
        if size > len(tail) - start:
            raise malformed(
                f"inputs[{index}]: {_SIZE} is {size}, but only {len(tail) - start} bytes are left after the JSON"
            )
        read.append({**entry, "data": RawData(tail[start : start + size])})
        start += size
    if start != len(tail):
        raise malformed(f"{len(tail) - start} bytes at the end of the body belong to no input")
    return {**value, "inputs": read}


def _binary_size(entry: object, index: int) -> int | None:
    """The number of an entry's bytes; None if its data is JSON."""
    parameters = entry.get("parameters") if isinstance(entry, Mapping) else None
    size = parameters.get(_SIZE) if isinstance(parameters, Mapping) else None
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise invalid(f"inputs[{index}]: {_SIZE} must be a number of bytes, not {abbreviate(size)}")
    assert isinstance(entry, Mapping)
    if "data" in entry:
        raise invalid(f"inputs[{index}]: the entry has both data and {_SIZE}")
    return size


def check_size(raw: RawData, datatype: str, shape: Sequence[int], spec: TensorSpec) -> None:
    """Refuse bytes that are not as many as the shape needs. Raises `RequestError`: 400, with the input's name."""
    needed = math.prod(shape) * item_bytes(_READ[datatype])
    if len(raw.content) != needed:
        raise invalid_input(
            spec, f"shape {list(shape)} of {datatype} needs {needed} bytes, {_SIZE} is {len(raw.content)}"
        )


def read_tensor(raw: RawData, datatype: str, spec: TensorSpec) -> torch.Tensor:
    """Return the flat tensor of an entry's bytes, in a dtype that holds its values.

    Raises `RequestError`: 400, a value of UINT64 is beyond the range of an integer input.
    """
    tensor = from_bytes(bytearray(raw.content), _READ[datatype])  # writable and aligned, as torch needs it
    if datatype in _WIDENED:
        dtype, mask = _WIDENED[datatype]
        return tensor.to(dtype) & mask
    if datatype == "UINT64" and bool((tensor < 0).any()):
        if not spec.dtype.startswith(("float", "bfloat")):
            raise invalid_input(spec, f"a value is out of the range of {spec.dtype}")
        # Halves that keep whether anything was cut off are rounded, once, as the whole numbers are.
        dtype, halves = torch_dtype(spec), ((tensor >> 1) & 0x7FFFFFFFFFFFFFFF) | (tensor & 1)
        return torch.where(tensor < 0, halves.to(dtype) * 2, tensor.to(dtype))
    return tensor


def json_bytes(body: bytes | bytearray, header: str) -> int:
    """Return the number of bytes of a body's JSON, from a request's header.

    Raises `RequestError`: 400, it is not one.
    """
    number = int(header) if header.isascii() and header.isdigit() and len(header) < 16 else -1
    if not 0 <= number <= len(body):
        raise malformed(
            f"{JSON_LENGTH_HEADER} is {abbreviate(header)}: expected a number up to {len(body)}, the body's bytes"
        )
    return number


def to_bytes(tensor: torch.Tensor, before: bytes = b"") -> bytes:
    """Return the bytes of a tensor, with others before them.

    >>> to_bytes(torch.tensor([[1, 2], [3, 256]], dtype=torch.int16)).hex()
    '0100020003000001'
    """
    content = bytearray(before)
    if tensor.numel() > 0:
        content += bytes(tensor.numel() * tensor.element_size())
        torch.frombuffer(content, dtype=tensor.dtype, offset=len(before)).copy_(tensor.detach().reshape(-1))
    return bytes(content)


def from_bytes(content: bytearray, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """Return the flat tensor of the bytes from `offset` on, which share its memory.

    A byte of a bool may have any value but 0 for true; torch knows only 1.

    Raises `ValueError`: they are no whole number of elements.
    """
    if offset == len(content):
        return torch.empty(0, dtype=dtype)
    if dtype == torch.bool:
        return torch.frombuffer(content, dtype=torch.uint8, offset=offset) != 0
    return torch.frombuffer(content, dtype=dtype, offset=offset)
