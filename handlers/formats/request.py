"""How TorchServe hands a request over: one mapping of fields, and one of headers, with its habits undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import torch

from ...bucketing.errors import LengthNotAccepted, SequenceTooLong
from ...bucketing.shapes import DynamicShape, TensorSpec
from ...config.manifest import Manifest
from ..responses import JSON, NPY, RequestError, abbreviate, invalid, malformed
from .tensors import convert_tensor, tensor_from_lists

BODY_FIELDS = ("body", "data")
_NO_HEADERS: Mapping[str, object] = MappingProxyType({})
_FORMS = {"application/x-www-form-urlencoded", "multipart/form-data"}


class Body(NamedTuple):
    """What a client sent, and the content type it gave (lower case, without parameters; "" if none)."""

    value: object
    """bytes, bytearray or str, or what TorchServe has already parsed from JSON."""
    content_type: str


class TorchServeRequest(NamedTuple):
    """One row of a batch as TorchServe gives it.

    `row` maps form fields to values; a body that is no form is the field `body`. An envelope may have replaced the
    row by the body itself. `headers` has the HTTP headers as the client wrote them (none over gRPC) and, for each
    field, a mapping with its own content type.
    """

    row: object
    headers: Mapping[str, object] = _NO_HEADERS

    def header(self, name: str) -> str:
        """The value of an HTTP header, "" where there is none. Names are compared without case.

        >>> TorchServeRequest({}, {"Accept": "application/x-npy"}).header("accept")
        'application/x-npy'
        """
        for spelling in (name, name.title()):  # as nearly every client writes them
            value = self.headers.get(spelling)
            if isinstance(value, str):
                return value
        others = (value for key, value in self.headers.items() if key.lower() == name and isinstance(value, str))
        return next(others, "")

    @property
    def is_describe_request(self) -> bool:
        """Whether TorchServe itself asks what the model is. A client's header of that name comes with a body.

        >>> TorchServeRequest({}, {"describe": "True"}).asks_description
        True
        >>> TorchServeRequest({"body": b"[1]"}, {"describe": "True"}).asks_description
        False
        """
        return self.headers.get("describe") == "True" and isinstance(self.row, Mapping) and not self.row

    @property
    def is_explain_request(self) -> bool:
        """Whether it came to the explanations address."""
        return self.headers.get("explain") == "True"

    @property
    def accepts_npy(self) -> bool:
        """Whether the client wants the answer as a .npy file."""
        return NPY in _accepted(self.header("accept"))

    @property
    def accepts_json(self) -> bool:
        """Whether the client also takes JSON, where .npy cannot be."""
        return bool(_accepted(self.header("accept")) & {JSON, "application/*", "*/*"})

    def body(self) -> Body:
        """The body, wherever it stands.

        Raises:
            RequestError: 400, there is none.
        """
        if not isinstance(self.row, dict):
            return Body(self.row, _plain_type(self.header("content-type")))
        for name in BODY_FIELDS:
            if name in self.row:
                return Body(self.row[name], self._field_type(name))
        raise malformed(_no_body(self.row, _plain_type(self.header("content-type"))))

    def _field_type(self, name: str) -> str:
        own = self.headers.get(name)
        given = own.get("content-type") if isinstance(own, dict) else None
        return _plain_type(given if isinstance(given, str) and given else self.header("content-type"))


@lru_cache(maxsize=256)  # few clients, each with its own
def _accepted(accept: str) -> frozenset[str]:
    return frozenset(map(_plain_type, accept.split(",")))


@lru_cache(maxsize=256)
def _plain_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _no_body(row: Mapping[object, object], content_type: str) -> str:
    first = str(next(iter(row), ""))
    # TorchServe hands over what it could not read as a form as no field at all.
    if first.lstrip()[:1] in {"[", "{"} or (not row and content_type in _FORMS):
        return (
            "the body came as a web form: send JSON with the header 'Content-Type: application/json' "
            "(curl -d needs -H 'Content-Type: application/json')"
        )
    if not row:
        return "the request has no body"
    return "the form has no field 'body' or 'data': send the input as the request's body, or in a field of that name"


MAX_SEQUENCES = 1024
"""In one request. A client with more sends several requests, which share the server fairly with others'."""


class SequenceInput(NamedTuple):
    """One sequence: a tensor of the `item_shape` of each declared input, in their order, and its number of timesteps.

    A model without time has length 1.
    """

    tensors: tuple[torch.Tensor, ...]
    length: int


class Form(Enum):
    """The format of a request, which decides that of its answer."""

    PLAIN = "one sequence: a JSON array, a JSON object by input name, or .npy"
    V1 = "KServe V1: instances"
    V2 = "Open Inference Protocol (KServe V2)"
    CODEC = "the model's own codec, one sequence"
    CODEC_LIST = "the model's own codec, a list of sequences"


class InferenceRequest(NamedTuple):
    """An accepted request."""

    items: tuple[SequenceInput, ...]
    form: Form
    npy: bool = False
    """The answer is to be a .npy file: there is one sequence and one output."""
    id: str = ""
    """V2: the client's own, to be given back."""
    batched: bool = False
    """V2: the sequences came as one tensor with a batch dimension, and so go the answers."""


def read_sequences(
    sequences: Sequence[Mapping[str, object]], manifest: Manifest, place: str
) -> tuple[SequenceInput, ...]:
    """The items of several sequences; the first that is refused is named as `place` with its index.

    Raises:
        RequestError: as `read_sequence`; 400 if there is no sequence, 413 if there are too many.
    """
    check_sequence_count(len(sequences), place)
    return tuple(_read_indexed(values, manifest, f"{place}[{index}]") for index, values in enumerate(sequences))


def check_sequence_count(sequences: int, place: str) -> None:
    """Refuse no sequences, and too many of them before anything is made of them.

    Raises:
        RequestError: 400 or 413.
    """
    if sequences == 0:
        raise invalid(f"{place} is empty: at least one sequence is needed")
    if sequences > MAX_SEQUENCES:
        message = f"{place} has {sequences} sequences, one request takes {MAX_SEQUENCES}"
        raise RequestError(413, "TooManySequences", message)


def _read_indexed(values: Mapping[str, object], manifest: Manifest, place: str) -> SequenceInput:
    try:
        return read_sequence(values, manifest)
    except RequestError as error:
        raise error.within(place) from None


def read_sequence(values: Mapping[str, object], manifest: Manifest) -> SequenceInput:
    """One sequence from its inputs by name, each as nested lists or as a tensor.

    Raises:
        RequestError: 400 if the inputs are not those declared, 413 if the sequence is longer than every bucket, 422 if
            its length is none that an unpaddable model accepts.
    """
    _check_names(values, manifest.inputs)
    tensors = tuple([_read_input(values[spec.name], spec) for spec in manifest.inputs])
    length = _common_length(tensors, manifest.inputs)
    if length is None:
        return SequenceInput(tensors, 1)
    longest = manifest.longest
    if length > longest and manifest.overflow == "truncate":
        return SequenceInput(tuple(map(_cut, tensors, manifest.inputs, [longest] * len(tensors))), longest)
    _check_length(length, manifest)
    return SequenceInput(tensors, length)


def _check_names(values: Mapping[str, object], inputs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in inputs]
    if values.keys() == set(names):
        return
    missing = [name for name in names if name not in values]
    unknown = [name for name in values if name not in names]
    problems = [f"missing: {', '.join(map(repr, missing))}"] * bool(missing)
    problems += [f"unknown: {', '.join(map(abbreviate, unknown[:3]))}"] * bool(unknown)
    raise invalid(f"the model's inputs are {', '.join(map(repr, names))}; {'; '.join(problems)}")


def _read_input(value: object, spec: TensorSpec) -> torch.Tensor:
    return convert_tensor(value, spec) if isinstance(value, torch.Tensor) else tensor_from_lists(value, spec)


def _common_length(tensors: Sequence[torch.Tensor], inputs: Sequence[TensorSpec]) -> int | None:
    """The number of timesteps of all inputs that have time; None if none has."""
    length: int | None = None
    first = ""
    for index, spec in enumerate(inputs):
        for axis in spec.item_time_dims:
            own = tensors[index].shape[axis]
            if length is None:
                length, first = own, spec.name
            elif own != length:
                raise invalid(
                    f"input {spec.name!r} has {own} timesteps, but input {first!r} has {length}: "
                    "all inputs of one sequence must have the same number"
                )
    return length


def _check_length(length: int, manifest: Manifest) -> None:
    try:
        if manifest.padding == "exact_lengths":
            manifest.grid.require_bucket_length(length)
        elif manifest.longest == manifest.grid.lengths[-1]:
            manifest.grid.bucket_length_for(length)
        else:
            DynamicShape(1, manifest.longest).bucket_length_for(length)
    except SequenceTooLong as error:
        raise RequestError(413, "SequenceTooLong", str(error)) from None
    except LengthNotAccepted as error:
        status = 413 if length > error.available[-1] else 422
        raise RequestError(status, "LengthNotAccepted", str(error)) from None  # type: ignore[arg-type]


def _cut(tensor: torch.Tensor, spec: TensorSpec, length: int) -> torch.Tensor:
    for axis in spec.item_time_dims:
        tensor = tensor.narrow(axis, 0, length)
    return tensor.contiguous()
