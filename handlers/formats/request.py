"""Accepted requests, the outputs that they want, and the protocol of formats.

Class names of `index_to_name.json` are used as by TorchServe's own classifiers. If the archive has that file, a JSON
response is an object of the five most likely classes by name, the most likely first, each with its probability: the
softmax of the model's scores, as in `ts.torch_handler.image_classifier`. V2 and .npy responses remain the scores,
because those formats hold tensors.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch

from ...bucketing.shapes import TensorSpec
from ...config.manifest import Manifest
from ..responses import DEFAULT_MAX_RESPONSE_BYTES, Encoded, RequestError, SessionKeys, abbreviate, invalid
from .binary_tensors import DATATYPES, to_bytes

LONGEST_ID = 512
"""Characters of a request's id, which its response repeats."""

Outputs = tuple[torch.Tensor, ...]
"""The output tensors of one sequence, in the order of the model's outputs."""


class SequenceInput(NamedTuple):
    """One sequence: a tensor for each declared input, in their order, and its number of timesteps.

    The shape of each tensor is the input's `item_shape`. A model without time has length 1.
    """

    tensors: tuple[torch.Tensor, ...]
    length: int
    cut: bool = False
    """Whether the client sent more timesteps, which `overflow: truncate` left out."""


class InferenceRequest(NamedTuple):
    """An accepted request."""

    sequences: tuple[SequenceInput, ...]
    format: RequestFormat
    npy: bool = False
    """Whether the response is a .npy file: there is one sequence and one output."""
    id: str = ""
    """V2: the client's id of the request, repeated in the response."""
    batched: bool = False
    """V2: whether the sequences came as one tensor with a batch dimension, as the outputs then do."""
    timeout_ms: float | None = None
    """V2: the time to live that the body names."""
    outputs: tuple[_WantedOutput, ...] | None = None
    """V2: the outputs that the response has; None: all, as JSON numbers."""


@dataclass(frozen=True)
class RequestFormat(ABC):
    """A format of requests and of their responses.

    `matches` and `decode` take what the format `reads`.
    """

    name: ClassVar[str]
    """The format's name in the digest of a session's request: it must not change."""
    reads: ClassVar[Literal["body", "object", "value"]] = "value"
    """Either the `Body` itself, or its JSON: an object, or any value."""
    response_types: ClassVar[tuple[str, ...]] = ()
    """The media types that the Accept header chooses from; empty: the header is ignored."""
    context: FormatContext

    @property
    def sends_outputs(self) -> bool:
        """Whether a response has the outputs themselves, so that its size follows from theirs."""
        return True

    @abstractmethod
    def matches(self, value: object) -> bool:
        """Whether the body is in this format."""

    @abstractmethod
    def decode(self, value: object) -> InferenceRequest:
        """Decode the sequences of a body.

        Raises `RequestError`: the body is not valid, or the model does not accept it.
        """

    def decode_end(self, value: object) -> InferenceRequest | None:
        """Decode a body without inputs, which only ends its session; None: it has some.

        Raises `RequestError`: the body is not valid.
        """
        return None

    @abstractmethod
    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode the outputs of a request's sequences as a body and its content type.

        `session` has the fields of the session, for the response to a session's request.

        Raises `RequestError`: the format cannot represent the outputs.
        """

    def error_keys(self, error: RequestError, value: object) -> dict[str, object] | None:
        """Return the keys of an error body beside `code`, `type` and `message`.

        None where the format has none. `value` is the refused body's JSON value, None if it is not JSON; the accepted
        request, if it failed later; or the `RawRequest`, if it came over gRPC and was not parsed.
        """
        return None


@dataclass(frozen=True)
class ModelIdentity:
    """Name and version of the served model."""

    name: str
    version: str


@dataclass(frozen=True)
class FormatContext:
    """The facts of an archive that formats depend on."""

    manifest: Manifest
    identity: ModelIdentity
    labels: Labels | None = None
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES
    """The most that the server sends."""

    def only_input(self, body: str) -> str:
        """Return the name of the model's one input, which a body without names needs.

        Raises `RequestError`: 400, the model has several inputs.
        """
        inputs = self.manifest.inputs
        if len(inputs) == 1:
            return inputs[0].name
        raise invalid(f"{body} is accepted only if the model has one input; send an object with {_names(inputs)}")


_NOT_SERVED = ("classification", "shared_memory_region")


class _WantedOutput(NamedTuple):
    """One output of a response."""

    place: int
    """Its index among the outputs of the model."""
    binary: bool
    """Whether its numbers follow the JSON as bytes."""


def wanted_outputs(value: Mapping[str, object], specs: Sequence[TensorSpec]) -> tuple[_WantedOutput, ...] | None:
    """Return the outputs that a request names, in its order, or all if it names none.

    None stands for all of them as JSON numbers.

    Raises `RequestError`: 400, an output is unknown, named twice, or wanted in a form that is not served.
    """
    binary = _flag(value.get("parameters"), "binary_data_output", "parameters")
    entries = value.get("outputs")
    if entries is None or entries == []:
        return tuple(_WantedOutput(index, binary=True) for index in range(len(specs))) if binary else None
    if not isinstance(entries, list) or len(entries) > len(specs):
        raise invalid(f"outputs must be a list of the model's outputs, each once: {_names(specs)}")
    wanted = [_wanted(entry, f"outputs[{index}]", specs, bool(binary)) for index, entry in enumerate(entries)]
    if len({one.place for one in wanted}) < len(wanted):
        raise invalid("outputs names one output twice")
    return tuple(wanted)


def _wanted(entry: object, path: str, specs: Sequence[TensorSpec], default: bool) -> _WantedOutput:
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
    return _WantedOutput(index, default if binary is None else binary)


def _flag(parameters: object, key: str, path: str) -> bool | None:
    value = parameters.get(key) if isinstance(parameters, Mapping) else None
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{path}: {key} must be true or false, not {abbreviate(value)}")
    return value


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)


def write_tensor(tensor: torch.Tensor, spec: TensorSpec, *, binary: bool) -> tuple[dict[str, object], bytes]:
    """Return an entry of `outputs` or `inputs`, and the bytes that follow the JSON.

    Raises `RequestError`: 500, a value is not finite, which V2's JSON numbers cannot represent.
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


_LABELS_FILE = "index_to_name.json"
_MOST_CLASSES = 5


@dataclass(frozen=True)
class Labels:
    """The name of each class, in the order of the model's scores."""

    names: tuple[str, ...]

    def most_likely(self, scores: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the names of the highest scores [C], the highest first, with their probabilities.

        >>> named = Labels(("no", "yes")).most_likely(torch.tensor([0.0, 1.0986123]))
        >>> {name: round(float(probability), 3) for name, probability in named.items()}
        {'yes': 0.75, 'no': 0.25}
        """
        found = torch.topk(torch.softmax(scores.float(), 0), min(_MOST_CLASSES, len(self.names)))
        by_name: dict[str, torch.Tensor] = {}
        for probability, index in zip(found.values, found.indices.tolist()):
            by_name.setdefault(self.names[index], probability)  # of two classes with one name, the more likely one
        return by_name


def read_labels(directory: Path, outputs: Sequence[TensorSpec]) -> Labels | None:
    """Read the archive's class names; None if it has none.

    Raises `RuntimeError`: the file does not name the classes of this model.
    """
    file = directory / _LABELS_FILE
    if not file.is_file():
        return None
    try:
        return Labels(_class_names(json.loads(file.read_text("utf-8")), _class_count(outputs)))
    except ValueError as error:
        raise RuntimeError(f"{_LABELS_FILE}: {error}") from error


def _class_count(outputs: Sequence[TensorSpec]) -> int:
    spec = outputs[0]
    sizes = [size for size in spec.item_shape if isinstance(size, int)]
    is_vector = len(sizes) == len(spec.item_shape) == 1
    if len(outputs) != 1 or not is_vector or "float" not in spec.dtype:
        shapes = ", ".join(f"{output.name!r} {list(output.item_shape)}" for output in outputs)
        raise ValueError(
            f"class names need a model with one output, one score for each class; this one gives {shapes}. "
            "Remove the file, or give the model a codec"
        )
    return sizes[0]


def _class_names(mapping: object, classes: int) -> tuple[str, ...]:
    if isinstance(mapping, dict) and isinstance(mapping.get("object_type_names"), list):  # TorchServe's older form
        mapping = {str(index): name for index, name in enumerate(mapping["object_type_names"])}
    if not isinstance(mapping, dict):
        raise ValueError('it must be an object from class number to name, like {"0": "no", "1": "yes"}')  # noqa: TRY004 - a bad file
    missing = [index for index in range(classes) if str(index) not in mapping]
    if missing:
        raise ValueError(f"the model has {classes} classes, but class {missing[0]} has no name")
    return tuple(_class_name(mapping[str(index)]) for index in range(classes))


def _class_name(value: object) -> str:
    name = value[-1] if isinstance(value, list) and value else value
    if not isinstance(name, str):
        raise ValueError(f"a class name must be a string or a list of strings, not {type(name).__name__}")  # noqa: TRY004 - a bad file
    return name
