"""Open Inference Protocol (KServe V2).

Sequences of different lengths are sent as one entry each, all with the input's name. Sequences of one length may be
sent as one tensor with the batch dimension where the input has it; their outputs come back the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar, Union

import torch

from ...bucketing.shapes import TensorSpec
from ...config.manifest import Manifest
from ..responses import JSON, Encoded, RequestError, SessionKeys, abbreviate, binary_type, invalid, malformed
from .binary_tensors import DATATYPES, RawData, check_size, read_tensor
from .json_text import to_json
from .raw_request import RawRequest
from .request import LONGEST_ID, InferenceRequest, Outputs, RequestFormat, wanted_outputs, write_tensor
from .sequences import check_sequence_count, check_timesteps, read_sequences
from .tensors import are_sizes, describe_spec, flatten, invalid_input, tensor_from_numbers

_ReadT = TypeVar("_ReadT")
_KEYS = {"name", "shape", "datatype", "data"}
_INTEGERS = {"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"}
_FLOATS = {"FP16", "BF16", "FP32", "FP64"}


class V2Format(RequestFormat):
    """V2: one entry of `inputs` for each input and sequence, or one for each input of a batch."""

    name: ClassVar[str] = "V2"
    reads = "object"
    response_types: ClassVar[tuple[str, ...]] = (JSON,)

    def matches(self, value: object) -> bool:
        """Whether a JSON value is a V2 request, even where an input of the model is itself called `inputs`."""
        if not isinstance(value, dict) or not isinstance(value.get("inputs"), list):
            return False
        entries = value["inputs"]
        if entries and all(isinstance(entry, Mapping) and entry.keys() >= _KEYS for entry in entries):
            return True
        return all(spec.name != "inputs" for spec in self.context.manifest.inputs)

    def decode(self, value: object) -> InferenceRequest:
        """Decode the sequences of a V2 request."""
        assert isinstance(value, dict)
        written, manifest = value["inputs"], self.context.manifest
        request_id, timeout_ms = _checked_id(value), _timeout_ms(value)
        wanted = wanted_outputs(value, manifest.outputs)
        check_sequence_count(math.ceil(len(written) / len(manifest.inputs)), "inputs", manifest)
        entries = [_at_index(index, _read_entry, entry, manifest) for index, entry in enumerate(written)]
        _check_counts(entries, manifest)
        parts: dict[str, list[torch.Tensor]] = {spec.name: [] for spec in manifest.inputs}
        for index, entry in enumerate(entries):
            parts[entry.spec.name] += _at_index(index, _read_tensors, entry)
        sequences = read_sequences(_sequences(parts), manifest, "sequences")
        batched = len(entries) == len(parts) and all(entry.batched for entry in entries)
        return InferenceRequest(sequences, self, id=request_id, batched=batched, timeout_ms=timeout_ms, outputs=wanted)

    def decode_end(self, value: object) -> InferenceRequest | None:
        """Decode a request with an empty list of inputs: V2 has the key in every request."""
        assert isinstance(value, dict)
        if value["inputs"]:
            return None
        wanted = wanted_outputs(value, self.context.manifest.outputs)
        return InferenceRequest((), self, id=_checked_id(value), timeout_ms=_timeout_ms(value), outputs=wanted)

    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode one entry for each output and sequence, or one for each output of a batched request."""
        specs, entries, contents = self.context.manifest.outputs, [], []
        for index, binary in request.outputs or [(index, False) for index in range(len(specs))]:
            spec, tensors = specs[index], [own[index] for own in outputs]
            if request.batched and spec.batch_dim is not None and len({tensor.shape for tensor in tensors}) == 1:
                tensors = [torch.stack(tensors, spec.batch_dim)]
            for tensor in tensors:
                entry, content = write_tensor(tensor, spec, binary=binary)
                entries.append(entry)
                contents.append(content)
        body = self._envelope(request.id) | {"outputs": entries}
        whole = body if session is None else {**body, "parameters": session}
        text = to_json(whole, self.context.max_response_bytes)
        is_binary = request.outputs is not None and any(one.binary for one in request.outputs)
        return (b"".join([text, *contents]), binary_type(len(text))) if is_binary else (text, JSON)

    def error_keys(self, error: RequestError, value: object) -> dict[str, object] | None:
        """Return the keys of a V2 response without outputs; `value` may be an unparsed request over gRPC.

        TorchServe's V2 gRPC loses its worker on any other body.
        """
        if isinstance(value, InferenceRequest):
            return self._envelope(value.id) | {"outputs": [], "error": error.message}
        parsed_from_grpc = isinstance(value, dict) and "model_name" in value and "inputs" in value
        if not (parsed_from_grpc or isinstance(value, RawRequest)) and not self.matches(value):
            return None
        given = value.get("id") if isinstance(value, dict) else None
        request_id = given if isinstance(given, str) and len(given) <= LONGEST_ID else ""
        return self._envelope(request_id) | {"outputs": [], "error": error.message}

    def _envelope(self, request_id: str) -> dict[str, object]:
        identity = self.context.identity
        return {"model_name": identity.name, "model_version": identity.version, "id": request_id}


class V2Entry(NamedTuple):
    """One entry of `inputs`, checked as far as it can be before a tensor is made."""

    spec: TensorSpec
    shape: tuple[int, ...]
    datatype: str
    data: Union[list[object], RawData]
    sequences: int
    batched: bool

    @property
    def timesteps(self) -> int:
        """Timesteps of all its sequences; 0 for an input without time."""
        time_dim = self.spec.time_dim
        if time_dim is None:
            return 0
        batch_before = self.spec.batch_dim is not None and self.spec.batch_dim < time_dim and not self.batched
        return self.sequences * self.shape[time_dim - batch_before]


def _at_index(index: int, read: Callable[..., _ReadT], *arguments: object) -> _ReadT:
    try:
        return read(*arguments)
    except RequestError as error:
        raise error.with_context(f"inputs[{index}]") from None


def _read_entry(entry: object, manifest: Manifest) -> V2Entry:
    if not isinstance(entry, Mapping) or not entry.keys() >= _KEYS:
        raise malformed("each entry must be an object with name, shape, datatype and data")
    inputs, data = manifest.inputs, entry["data"]
    spec = next((spec for spec in inputs if spec.name == entry["name"]), None)
    if spec is None:
        names = ", ".join(repr(spec.name) for spec in inputs)
        raise invalid(f"the model has no input {abbreviate(entry['name'])}: its inputs are {names}")
    _check_datatype(entry["datatype"], spec)
    shape = _read_shape(entry["shape"], spec)
    if isinstance(data, RawData):
        check_size(data, entry["datatype"], shape, spec)
    elif not isinstance(data, list):
        raise invalid_input(spec, "data must be a list of numbers, or bytes after the JSON")
    elif not (data and isinstance(data[0], list)):
        _check_values(len(data), shape, spec)
    batch_dim = spec.batch_dim
    if batch_dim is None or len(shape) != len(spec.shape):
        return V2Entry(spec, shape, entry["datatype"], data, 1, batched=False)
    check_sequence_count(shape[batch_dim], "the tensor", manifest)
    return V2Entry(spec, shape, entry["datatype"], data, shape[batch_dim], batched=True)


def _check_counts(entries: Sequence[V2Entry], manifest: Manifest) -> None:
    """Refuse too many sequences or timesteps of all entries together, before tensors are made of them."""
    for spec in manifest.inputs:
        own = [entry for entry in entries if entry.spec is spec]
        if own:
            check_sequence_count(sum(entry.sequences for entry in own), "inputs", manifest)
        check_timesteps(sum(entry.timesteps for entry in own), "inputs", manifest)


def _read_tensors(entry: V2Entry) -> Sequence[torch.Tensor]:
    if isinstance(entry.data, RawData):
        tensor = read_tensor(entry.data, entry.datatype, entry.spec).reshape(entry.shape)
    else:
        tensor = _read_data(entry.data, entry.shape, entry.spec)
    if not entry.batched:
        return (tensor,)
    assert entry.spec.batch_dim is not None
    return tensor.unbind(entry.spec.batch_dim)


def _check_datatype(datatype: object, spec: TensorSpec) -> None:
    own = DATATYPES[spec.dtype]
    taken = {own} if own == "BOOL" else _INTEGERS if own in _INTEGERS else _INTEGERS | _FLOATS
    if not isinstance(datatype, str) or datatype not in taken:
        raise invalid_input(spec, f"datatype {abbreviate(datatype)} is not accepted: send {own}")


def _read_shape(shape: object, spec: TensorSpec) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, list) else ()
    if not isinstance(shape, list) or not are_sizes(sizes):
        raise invalid_input(spec, "shape must be a list of sizes")
    if len(sizes) not in {len(spec.item_shape), len(spec.shape)}:
        raise invalid_input(
            spec, f"expected {describe_spec(spec)}, with or without a batch dimension; got {len(sizes)} dimensions"
        )
    return sizes


def _read_data(data: list[object], shape: tuple[int, ...], spec: TensorSpec) -> torch.Tensor:
    flat = data
    if data and isinstance(data[0], list):
        _check_nesting(data, shape, spec)
        flat, found = flatten(data, len(shape), spec)
        if found != shape:
            raise _other_nesting(found, shape, spec)
        _check_values(len(flat), shape, spec)
    return tensor_from_numbers(flat, spec).reshape(shape)


def _check_nesting(data: list[object], shape: tuple[int, ...], spec: TensorSpec) -> None:
    """Compare the first list of each depth with the shape, before all lists are looked at."""
    found, inner = list[int](), data
    while len(found) < len(shape):
        found.append(len(inner))
        if not inner or not isinstance(inner[0], list):
            break
        inner = inner[0]
    if tuple(found) != shape[: len(found)]:
        raise _other_nesting(found, shape, spec)


def _other_nesting(found: Sequence[int], shape: tuple[int, ...], spec: TensorSpec) -> RequestError:
    return invalid_input(spec, f"data is nested as {list(found)}, but shape says {list(shape)}")


def _check_values(found: int, shape: tuple[int, ...], spec: TensorSpec) -> None:
    if found != math.prod(shape):
        raise invalid_input(spec, f"shape {list(shape)} needs {math.prod(shape)} values, data has {found}")


def _sequences(parts: Mapping[str, Sequence[torch.Tensor]]) -> list[dict[str, object]]:
    counts = {name: len(own) for name, own in parts.items()}
    if len(set(counts.values())) > 1:
        counted = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise invalid(f"every input is needed once for each sequence, but there are {counted}")
    return [dict(zip(parts, own)) for own in zip(*parts.values())]


def _checked_id(value: Mapping[str, object]) -> str:
    given = value.get("id")
    if isinstance(given, str) and len(given) > LONGEST_ID:
        raise invalid(f"id: expected at most {LONGEST_ID} characters, got {len(given)}")
    return given if isinstance(given, str) else ""


def _timeout_ms(value: Mapping[str, object]) -> float | None:
    """Return the request's time to live; it is given in microseconds, as Triton's clients send it."""
    parameters = value.get("parameters")
    timeout = parameters.get("timeout") if isinstance(parameters, Mapping) else None
    if timeout is None:
        return None
    if type(timeout) is not int or not 0 < timeout < 1 << 53:
        raise invalid(f"parameters.timeout: expected microseconds, more than 0, got {abbreviate(timeout)}")
    return timeout / 1000
