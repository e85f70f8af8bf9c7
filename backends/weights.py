"""Weight files: tensors mapped into memory once, and shared by every variant."""

from __future__ import annotations

import json
import math
import mmap
import pickle
import zipfile
from collections.abc import Iterable
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from ..bucketing.padding import storage_ptr

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


class WeightsError(RuntimeError):
    """A weights file that cannot be used. The message says why, and what to save instead."""


def read_weights(path: Path, content: Path | None = None) -> dict[str, torch.Tensor]:
    """Map the tensors of a `.pt`/`.pth` state dict or a `.safetensors` file: contiguous, on the CPU,
    read on use.

    `content` is a copy of the file to map in its place. The file that is mapped must not change as long as a tensor is
    in use.

    Raises:
        WeightsError: there is no such file, it is damaged, or it is not a flat dict of tensors.
    """
    if not path.is_file():
        raise WeightsError(f"there is no weights file {path}")
    _require_content(path)
    read = {".pt": _read_torch, ".pth": _read_torch, ".safetensors": _read_safetensors}.get(path.suffix.lower())
    if read is None:
        raise WeightsError(f"{path.name}: weights must be a .pt, .pth or .safetensors file")
    return {name: tensor.contiguous() for name, tensor in read(path, content or path).items()}


def _require_content(path: Path) -> None:
    if path.is_file() and not path.stat().st_size:
        raise WeightsError(f"{path.name} is empty: save the weights again with torch.save(model.state_dict(), ...)")


def storage_ptrs(weights: Iterable[torch.Tensor]) -> frozenset[int]:
    """Return the addresses of the weights' memory, for `copy_if_aliased`."""
    return frozenset(storage_ptr(weight) for weight in weights)


def copy_if_aliased(output: torch.Tensor, storages: frozenset[int]) -> torch.Tensor:
    """Copy an output that shares memory with a weight, so that callers may modify it.

    >>> weight = torch.ones(2)
    >>> _ = copy_if_aliased(weight[:1], storage_ptrs([weight])).zero_()
    >>> weight
    tensor([1., 1.])
    """
    return output.detach().clone() if storage_ptr(output) in storages else output


def _read_torch(path: Path, mapped: Path) -> dict[str, torch.Tensor]:
    content = load_checkpoint(path, mapped)
    if not isinstance(content, dict):
        raise WeightsError(
            f"{path.name} holds a {type(content).__name__}, not a state dict: save torch.save(model.state_dict(), ...)"
        )
    others = [f"{key!r} ({type(value).__name__})" for key, value in content.items() if not _is_named_tensor(key, value)]
    if others:
        raise WeightsError(
            f"{path.name} is no flat state dict: {', '.join(others[:5])} {'is' if len(others) == 1 else 'are'} not a "
            f"named tensor, nor does it hold one. Save the model's alone: torch.save(model.state_dict(), ...)"
        )
    return {name: tensor.detach() for name, tensor in content.items()}


def _is_named_tensor(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, torch.Tensor)


def load_checkpoint(path: Path, content: Path | None = None) -> Any:
    """Load what a `.pt` or `.pth` file holds: tensors and plain values, no code.

    `content` is a copy of the file to map in its place.

    Raises:
        WeightsError: it is damaged, or holds objects of other classes.
    """
    _require_content(path)
    content = content or path
    mapped = zipfile.is_zipfile(content)  # files of torch before 1.6 cannot be mapped
    # The torch of hosts with old accelerators cannot map files.
    options: dict[str, Any] = {"mmap": True} if mapped and "mmap" in signature(torch.load).parameters else {}
    try:
        # As a string: an old torch takes no path of a file to map.
        return torch.load(str(content), map_location="cpu", weights_only=True, **options)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path.name} holds more than tensors and is not loaded, since unpickling it could run any code. A whole "
            f"module, or objects of your own beside the weights? Save torch.save(model.state_dict(), ...) instead"
        ) from error
    except RuntimeError as error:
        if "Cannot allocate memory" not in str(error):
            raise WeightsError(_damaged(path, error)) from error
        raise WeightsError(f"{path.name} cannot be mapped into memory ({error}): free memory") from error
    except Exception as error:  # whatever the unpickler raises for damaged data
        raise WeightsError(_damaged(path, error)) from error


def _damaged(path: Path, error: Exception) -> str:
    return f"{path.name} is damaged, or no file that torch.save wrote: {error}"


def _read_safetensors(path: Path, mapped: Path) -> dict[str, torch.Tensor]:
    with mapped.open("rb") as file:
        if mapped.stat().st_size < 8:
            raise WeightsError(f"{path.name} is damaged: too short for a safetensors header")
        # A private mapping: pages are shared with every other process until somebody writes, and nobody does.
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        header, start = _header(data)
        _check_layout(header, len(data) - start)
        return {name: _tensor(data, start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path.name} is damaged, or no safetensors file: {error}") from error


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
        raise ValueError(f"{name!r} has dtype {entry['dtype']}, known are {', '.join(_DTYPES)}")
    if not all(type(size) is int and size >= 0 for size in entry["shape"]):
        raise ValueError(f"{name!r} has shape {entry['shape']}")
    numbers: int = math.prod(entry["shape"])
    return numbers * _width(_DTYPES[entry["dtype"]])


def _width(dtype: torch.dtype) -> int:
    """Bytes of an element; dtypes of an old torch have no itemsize."""
    return torch.empty(0, dtype=dtype).element_size()


def _tensor(data: mmap.mmap, start: int, entry: dict[str, Any]) -> torch.Tensor:
    dtype, (begin, end) = _DTYPES[entry["dtype"]], entry["data_offsets"]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    raw = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=start + begin)
    if raw.data_ptr() % _width(dtype):  # after a header of odd length; engines need aligned elements
        raw = raw.clone()
    return raw.view(dtype).view(entry["shape"])
