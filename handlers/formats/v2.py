"""Open Inference Protocol (KServe V2).

Sequences of different lengths are sent as one entry each, all with the input's name. Sequences of one length may be
sent as one tensor with the batch dimension where the input has it; their outputs come back the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ...bucketing.shapes import DType, TensorSpec
from ..responses import JSON, Encoded, RequestError, SessionKeys, abbreviate, invalid, malformed
from .json_text import to_json
from .request import FormatContext, InferenceRequest, Outputs, check_sequence_count, read_sequences
from .tensors import describe_spec, flatten, invalid_input, tensor_from_numbers

_KEYS = {"name", "shape", "datatype", "data"}
_DATATYPES: dict[DType, str] = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16",
    "int64": "INT64", "int32": "INT32", "int16": "INT16", "int8": "INT8", "uint8": "UINT8", "bool": "BOOL",
}  # fmt: skip
_INTEGERS = {"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"}
_FLOATS = {"FP16", "BF16", "FP32", "FP64"}


@dataclass(frozen=True)
class V2Format:
    """V2: one entry of `inputs` for each input and sequence, or one for each input of a batch."""

    name: ClassVar[str] = "V2"
    parses_json: ClassVar[bool] = True
    response_types: ClassVar[tuple[str, ...]] = (JSON,)
    context: FormatContext

    def matches(self, value: object) -> bool:
        """Whether a JSON value is a V2 request, even where an input of the model is itself called `inputs`."""
        if not isinstance(value, dict) or not isinstance(value.get("inputs"), list):
            return False
        entries = value["inputs"]
        if entries and all(isinstance(entry, Mapping) and entry.keys() >= _KEYS for entry in entries):
            return True
        return all(spec.name != "inputs" for spec in self.context.manifest.inputs)

    def decode(self, value: object) -> InferenceRequest:
        """Decode the sequences of a V2 request.

        Raises:
            RequestError: 400, 413 or 422, naming the entry or the sequence.
        """
        assert isinstance(value, dict)
        entries, inputs = value["inputs"], self.context.manifest.inputs
        check_sequence_count(math.ceil(len(entries) / len(inputs)), "inputs")
        by_name: dict[str, list[V2Tensor]] = {spec.name: [] for spec in inputs}
        for index, entry in enumerate(entries):
            read = _read_indexed(entry, index, inputs)
            by_name[read.spec.name].append(read)
        sequences = read_sequences(_sequences(by_name), self.context.manifest, "sequences")
        batched = all(len(found) == 1 and found[0].batched for found in by_name.values())
        return InferenceRequest(sequences, self, id=_request_id(value), batched=batched)

    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode one entry for each output and sequence, or one for each output of a batched request.

        Raises:
            RequestError: 500, an output is not finite, which V2's numbers cannot represent.
        """
        entries = []
        for index, spec in enumerate(self.context.manifest.outputs):
            tensors = [own[index] for own in outputs]
            if request.batched and spec.batch_dim is not None:
                tensors = [torch.stack(tensors, spec.batch_dim)]
            entries += [_write_entry(tensor, spec) for tensor in tensors]
        body = self._envelope(request.id) | {"outputs": entries}
        return to_json(body if session is None else {**body, "parameters": session}), JSON

    def encode_error(self, error: RequestError, value: object) -> dict[str, object] | None:
        """Return a V2 response without outputs: TorchServe's V2 gRPC loses its worker on any other body."""
        from_grpc = isinstance(value, dict) and "model_name" in value and "inputs" in value
        if not from_grpc and not self.matches(value):
            return None
        return self._envelope(_request_id(value)) | {"outputs": [], "error": error.message}

    def _envelope(self, request_id: str) -> dict[str, object]:
        identity = self.context.identity
        return {"model_name": identity.name, "model_version": identity.version, "id": request_id}


@dataclass(frozen=True)
class V2Tensor:
    """One decoded entry of `inputs`: the tensors of one or several sequences."""

    spec: TensorSpec
    parts: tuple[torch.Tensor, ...]
    batched: bool


def _read_indexed(entry: object, index: int, inputs: Sequence[TensorSpec]) -> V2Tensor:
    try:
        return _read_entry(entry, inputs)
    except RequestError as error:
        raise error.with_context(f"inputs[{index}]") from None


def _read_entry(entry: object, inputs: Sequence[TensorSpec]) -> V2Tensor:
    if not isinstance(entry, Mapping) or not entry.keys() >= _KEYS:
        raise malformed("each entry must be an object with name, shape, datatype and data")
    spec = next((spec for spec in inputs if spec.name == entry["name"]), None)
    if spec is None:
        names = ", ".join(repr(spec.name) for spec in inputs)
        raise invalid(f"the model has no input {abbreviate(entry['name'])}: its inputs are {names}")
    _check_datatype(entry["datatype"], spec)
    shape = _read_shape(entry["shape"], spec)
    tensor = _read_data(entry["data"], shape, spec)
    if spec.batch_dim is not None and len(shape) == len(spec.shape):
        check_sequence_count(shape[spec.batch_dim], "the tensor")
        return V2Tensor(spec, tensor.unbind(spec.batch_dim), batched=True)
    return V2Tensor(spec, (tensor,), batched=False)


def _check_datatype(datatype: object, spec: TensorSpec) -> None:
    own = _DATATYPES[spec.dtype]
    taken = {own} if own == "BOOL" else _INTEGERS if own in _INTEGERS else _INTEGERS | _FLOATS
    if not isinstance(datatype, str) or datatype not in taken:
        raise invalid_input(spec, f"datatype {abbreviate(datatype)} is not taken: send {own}")


def _read_shape(shape: object, spec: TensorSpec) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, list) else ()
    if not isinstance(shape, list) or any(type(size) is not int or not 0 <= size < 1 << 40 for size in sizes):
        raise invalid_input(spec, "shape must be a list of sizes")
    if len(sizes) not in {len(spec.item_shape), len(spec.shape)}:
        raise invalid_input(
            spec, f"expected {describe_spec(spec)}, with or without a batch dimension; got {len(sizes)} dimensions"
        )
    return sizes


def _read_data(data: object, shape: tuple[int, ...], spec: TensorSpec) -> torch.Tensor:
    if not isinstance(data, list):
        raise invalid_input(spec, "data must be a list of numbers (binary tensor data is not taken)")
    flat = data
    if data and isinstance(data[0], list):
        flat, found = flatten(data, len(shape), spec)
        if found != shape:
            raise invalid_input(spec, f"data is nested as {list(found)}, but shape says {list(shape)}")
    if len(flat) != math.prod(shape):
        raise invalid_input(spec, f"shape {list(shape)} needs {math.prod(shape)} values, data has {len(flat)}")
    return tensor_from_numbers(flat, spec).reshape(shape)


def _sequences(by_name: Mapping[str, Sequence[V2Tensor]]) -> list[dict[str, object]]:
    """The inputs of each sequence, by name."""
    parts = {name: [part for entry in entries for part in entry.parts] for name, entries in by_name.items()}
    counts = {name: len(own) for name, own in parts.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise invalid(f"every input is needed once for each sequence, but there are {told}")
    return [dict(zip(parts, own, strict=True)) for own in zip(*parts.values(), strict=True)]


def _write_entry(tensor: torch.Tensor, spec: TensorSpec) -> dict[str, object]:
    if tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        raise RequestError(
            "AnswerNotFinite", f"output {spec.name!r} holds NaN or infinity, which this format cannot say"
        )
    return {
        "name": spec.name,
        "shape": list(tensor.shape),
        "datatype": _DATATYPES[spec.dtype],
        "data": tensor.reshape(-1),
    }


def _request_id(value: object) -> str:
    given = value.get("id") if isinstance(value, dict) else None
    return given if isinstance(given, str) else ""
