"""The outputs of a V2 response: which ones a request selects, and whether as JSON numbers or as bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ...bucketing.shapes import TensorSpec
from ..responses import RequestError, abbreviate, invalid
from .binary_tensors import DATATYPES
from .tensor_bytes import to_bytes

_NOT_SERVED = ("classification", "shared_memory_region")


class WantedOutput(NamedTuple):
    """One output of a response."""

    place: int
    """Its index among the outputs of the model."""
    binary: bool
    """Whether its numbers follow the JSON as bytes."""


def wanted_outputs(value: Mapping[str, object], specs: Sequence[TensorSpec]) -> tuple[WantedOutput, ...] | None:
    """Return the outputs that a request names, in its order, or all if it names none.

    None stands for all of them as JSON numbers.

    Raises:
        RequestError: 400, an output is unknown, named twice, or wanted in a form that is not served.
    """
    binary = _flag(value.get("parameters"), "binary_data_output", "parameters")
    entries = value.get("outputs")
    if entries is None or entries == []:
        return tuple(WantedOutput(index, binary=True) for index in range(len(specs))) if binary else None
    if not isinstance(entries, list) or len(entries) > len(specs):
        raise invalid(f"outputs must be a list of the model's outputs, each once: {_names(specs)}")
    wanted = [_wanted(entry, f"outputs[{index}]", specs, bool(binary)) for index, entry in enumerate(entries)]
    if len({one.place for one in wanted}) < len(wanted):
        raise invalid("outputs names one output twice")
    return tuple(wanted)


def _wanted(entry: object, path: str, specs: Sequence[TensorSpec], default: bool) -> WantedOutput:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    index = next((index for index, spec in enumerate(specs) if spec.name == name), None)
    if index is None:
        raise invalid(f"{path}: the model has no output {abbreviate(name)}: its outputs are {_names(specs)}")
    assert isinstance(entry, Mapping)
    parameters = entry.get("parameters")
    unserved = [key for key in _NOT_SERVED if isinstance(parameters, Mapping) and parameters.get(key)]
    if unserved:
        raise invalid(f"{path}: {unserved[0]} is not served: leave it out")
    binary = _flag(parameters, "binary_data", path)
    return WantedOutput(index, default if binary is None else binary)


def _flag(parameters: object, key: str, path: str) -> bool | None:
    value = parameters.get(key) if isinstance(parameters, Mapping) else None
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{path}: {key} must be true or false, not {abbreviate(value)}")
    return value


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)


def write_output(tensor: torch.Tensor, spec: TensorSpec, *, binary: bool) -> tuple[dict[str, object], bytes]:
    """Return an entry of `outputs`, and the bytes that follow the JSON.

    Raises:
        RequestError: 500, a value is not finite, which V2's JSON numbers cannot represent.
    """
    entry: dict[str, object] = {"name": spec.name, "shape": list(tensor.shape), "datatype": DATATYPES[spec.dtype]}
    if binary:
        content = to_bytes(tensor)
        return {**entry, "parameters": {"binary_data_size": len(content)}}, content
    if tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        raise RequestError(
            "AnswerNotFinite",
            f"output {spec.name!r} holds NaN or infinity, which JSON cannot represent: request binary data",
        )
    return {**entry, "data": tensor.reshape(-1)}, b""
