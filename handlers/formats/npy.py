"""The .npy format, read and written without numpy and without pickle.

A file is the magic, a version, the length of a header, the header as the text of a Python dictionary, and the bytes of
the array (versions 1.0 to 3.0: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
"""

from __future__ import annotations

import ast
import math
import re
import sys
from array import array
from functools import lru_cache
from typing import NamedTuple

import torch

from ...bucketing.padding import item_bytes
from ..responses import NPY, abbreviate, malformed
from .binary_tensors import from_bytes, to_bytes
from .json_formats import BINARY, PlainFormat
from .raw_request import Body
from .request import InferenceRequest
from .sequences import read_sequence
from .tensors import are_sizes

MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 4096  # bytes; numpy writes 118 for any array of ordinary rank

_WARNED_OF = re.compile(r"[0-9][A-Za-z_]|\\")
_NAMES = {
    "b1": "bool", "f2": "float16", "f4": "float32", "f8": "float64",
    "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
}  # fmt: skip
# Hosts of old accelerators have a torch without wide unsigned integers.
_READ: dict[str, torch.dtype] = {kind: getattr(torch, name) for kind, name in _NAMES.items() if hasattr(torch, name)}
_WRITE = {dtype: kind for kind, dtype in _READ.items()}
_HEADER_CACHE_SIZE = 1024
"""Number of cached headers. Sequences of one length have the same header, and parsing it takes the most time."""
_WORDS = {1: "B", 2: "H", 4: "I", 8: "Q"}  # array codes by width in bytes


class _Header(NamedTuple):
    dtype: torch.dtype
    big_endian: bool
    fortran_order: bool
    shape: tuple[int, ...]


class NpyFormat(PlainFormat):
    """A .npy file: one sequence of a model of one input, answered as plain JSON."""

    reads = "body"

    def matches(self, value: object) -> bool:
        """Whether the body says that it is a .npy file, or says nothing (gRPC) and begins like one."""
        assert isinstance(value, Body)
        content = value.value
        return isinstance(content, BINARY) and (value.content_type == NPY or content.startswith(MAGIC))

    def decode(self, value: object) -> InferenceRequest:
        """Decode the one sequence. Raises `RequestError`: as `read_npy` and `read_sequence`."""
        assert isinstance(value, Body)
        assert isinstance(value.value, BINARY)
        values = {self.context.only_input("a .npy body"): read_npy(value.value)}
        return InferenceRequest((read_sequence(values, self.context.manifest),), self)


def read_npy(content: bytes | bytearray) -> torch.Tensor:
    """Read the tensor of a .npy file.

    It has bool, integers or floats of either byte order, in C or Fortran order. The tensor may share the memory of
    `content` if that is a bytearray.

    Raises `RequestError`: 400, it is not such a file, or holds anything else, Python objects above all.
    """
    text, start = _header_text(content)
    header = _header(text)
    found, expected = len(content) - start, math.prod(header.shape) * item_bytes(header.dtype)
    if found != expected:
        raise malformed(
            f".npy: shape {list(header.shape)} needs {expected} bytes of data, the body has {found}"
            if len(header.shape) <= 8
            else f".npy: the data should be {expected} bytes, the body has {found}"
        )
    return _tensor(content, start, header)


def write_npy(tensor: torch.Tensor) -> bytes:
    """Write the tensor as a .npy file of version 1.0.

    In C order and this machine's byte order; bfloat16 is written as float32.

    >>> read_npy(write_npy(torch.tensor([[1, 2], [3, 4]])))
    tensor([[1, 2],
            [3, 4]])
    """
    known = tensor if tensor.dtype in _WRITE else tensor.to(torch.float32)
    return to_bytes(known, _prefix(known.dtype, tuple(known.shape)))


@lru_cache(maxsize=_HEADER_CACHE_SIZE)
def _prefix(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """Return everything before the data, filled up to a multiple of 64 bytes."""
    order = "|" if item_bytes(dtype) == 1 else "<" if sys.byteorder == "little" else ">"
    text = f"{{'descr': '{order}{_WRITE[dtype]}', 'fortran_order': False, 'shape': {shape!r}, }}"
    padded = text + " " * (-(len(MAGIC) + 4 + len(text) + 1) % 64) + "\n"
    return MAGIC + bytes((1, 0)) + len(padded).to_bytes(2, "little") + padded.encode("ascii")


def _header_text(content: bytes | bytearray) -> tuple[str, int]:
    """Return the header and the offset of the data."""
    if not content.startswith(MAGIC):
        raise malformed(f".npy: the body does not begin like a .npy file, but with {abbreviate(bytes(content[:6]))}")
    version = bytes(content[6:8])
    if version not in {b"\x01\x00", b"\x02\x00", b"\x03\x00"}:
        raise malformed(f".npy: format version {abbreviate(version)} is not known (1.0, 2.0 and 3.0 are)")
    begin = 10 if version[0] == 1 else 12
    length = int.from_bytes(content[8:begin], "little")
    end = begin + length
    if length > _LONGEST_HEADER or end > len(content):
        raise malformed(f".npy: the header should have {length} bytes; the body ends sooner, or that is too long")
    return bytes(content[begin:end]).decode("latin-1" if version[0] < 3 else "utf-8", "replace"), end


@lru_cache(maxsize=_HEADER_CACHE_SIZE)
def _header(text: str) -> _Header:
    try:
        # Python warns of each number with a letter behind it, and of escapes, and would fill the log.
        fields = None if _WARNED_OF.search(text) else ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise malformed(".npy: the header is not a dictionary of descr, fortran_order and shape")
    if type(fields["fortran_order"]) is not bool:
        raise malformed(".npy: fortran_order is not True or False")
    dtype, big_endian = _dtype(fields["descr"])
    shape = fields["shape"]
    if not (isinstance(shape, tuple) and are_sizes(shape)):
        raise malformed(".npy: the shape is not a tuple of at most 32 sizes with a product below 2**40")
    return _Header(dtype, big_endian, fields["fortran_order"], shape)


def _dtype(description: object) -> tuple[torch.dtype, bool]:
    if isinstance(description, str) and description[:1] in {"<", ">", "|", "="}:
        dtype = _READ.get(description[1:])
        if dtype is not None:
            order = description[0]
            return dtype, order == ">" or (order == "=" and sys.byteorder == "big")
    raise malformed(
        f".npy: arrays of type {abbreviate(description)} are not accepted: send bool, integers or "
        f"floats of 16, 32 or 64 bits"
    )


def _tensor(content: bytes | bytearray, start: int, header: _Header) -> torch.Tensor:
    width = item_bytes(header.dtype)
    if header.big_endian != (sys.byteorder == "big"):
        words = array(_WORDS[width], bytes(content[start:]))
        words.byteswap()
        content, start = bytearray(words.tobytes()), 0
    elif isinstance(content, bytes) or start % width:  # torch needs writable, aligned memory
        content, start = bytearray(memoryview(content)[start:]), 0
    flat = from_bytes(content, header.dtype, start)
    if not header.fortran_order:
        return flat.reshape(header.shape)
    axes = tuple(reversed(range(len(header.shape))))
    return flat.reshape(header.shape[::-1]).permute(axes).contiguous()
