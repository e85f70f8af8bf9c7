"""Reader of .safetensors files, which maps the tensors and checks every entry of the file's table."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import torch

from ..bucketing.padding import item_bytes

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LARGEST_HEADER_BYTES = 100_000_000
_MOST_DIMENSIONS = 64  # as torch's operators take
_LONGEST_REASON = 300


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Map the tensors of the file. Raises `WeightsError`: the file is damaged."""
    with path.open("rb") as file:
        if path.stat().st_size < 8:
            raise WeightsError(f"{path.name} is damaged: too short for a safetensors header")
        # A private mapping: pages are shared with all other processes until one writes, and none does.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        header, start = _header(data)
        _check_layout(header, len(data) - start)
        return {name: _tensor(data, start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:  # torch's own is a RuntimeError
        reason = str(error).partition("\n")[0][:_LONGEST_REASON]
        raise WeightsError(f"{path.name} is damaged, or no safetensors file: {reason}") from error


def _header(data: mmap.mmap) -> tuple[dict[str, dict[str, Any]], int]:
    """The table of tensors, and the offset of their data."""
    size = int.from_bytes(data[:8], "little")
    if size > min(len(data) - 8, _LARGEST_HEADER_BYTES):
        raise ValueError(f"its header claims {size} bytes")
    header = json.loads(data[8 : 8 + size].decode("utf-8"))
    header.pop("__metadata__", None)
    return header, 8 + size


def _check_layout(header: dict[str, dict[str, Any]], total: int) -> None:
    """Check that tensors follow one another and fill the file: no overlap, no gap, nothing beyond the end."""
    position = 0
    for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        begin, end = entry["data_offsets"]
        if begin != position or end - begin != _bytes(name, entry):
            raise ValueError(f"{name!r} ({entry['dtype']} {entry['shape']}) cannot be at bytes {begin} to {end}")
        position = end
    if position != total:
        raise ValueError(f"its tensors take {position} bytes, but {total} follow the header")


def _bytes(name: str, entry: dict[str, Any]) -> int:
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"{name!r} has dtype {entry['dtype']!r}, known are {', '.join(_DTYPES)}")
    if len(entry["shape"]) > _MOST_DIMENSIONS or not all(type(size) is int and size >= 0 for size in entry["shape"]):
        raise ValueError(f"{name!r} has shape {entry['shape']}")
    numbers: int = math.prod(entry["shape"])
    return numbers * item_bytes(_DTYPES[entry["dtype"]])


def _tensor(data: mmap.mmap, start: int, entry: dict[str, Any]) -> torch.Tensor:
    dtype, (begin, end) = _DTYPES[entry["dtype"]], entry["data_offsets"]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    raw = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=start + begin)
    if raw.data_ptr() % item_bytes(dtype):  # after a header of odd length; engines need aligned elements
        raw = raw.clone()
    return raw.view(dtype).view(entry["shape"])


class WeightsError(RuntimeError):
    """A weights file that cannot be used. The message says why, and what to save instead."""
