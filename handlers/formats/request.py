"""Requests as a host received them, their sequences, and the protocol of formats.

A request is a mapping of form fields and a mapping of headers, as TorchServe gives it. `RawRequest` reads both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

import torch

from ...bucketing.errors import LengthNotAccepted, SequenceTooLong, SequenceTooShort
from ...bucketing.shapes import TensorSpec
from ...config.manifest import Manifest
from ..responses import (
    DEFAULT_MAX_RESPONSE_BYTES,
    JSON,
    JSON_LENGTH_HEADER,
    NPY,
    Encoded,
    RequestError,
    SessionKeys,
    abbreviate,
    invalid,
    malformed,
)
from .binary_tensors import json_bytes
from .labels import Labels
from .tensors import convert_tensor, tensor_from_lists
from .v2_outputs import WantedOutput

BODY_FIELDS = ("body", "data")
_NO_HEADERS: Mapping[str, object] = MappingProxyType({})
_FORMS = {"application/x-www-form-urlencoded", "multipart/form-data"}


class Body(NamedTuple):
    """A request's body and its content type (lower case, without parameters; "" if none)."""

    value: object
    """Bytes, bytearray or str, or a value that the host has already parsed from JSON."""
    content_type: str
    json_bytes: int | None = None
    """V2: the bytes of the JSON that the bytes of tensors follow; None: there are none."""


class RawRequest(NamedTuple):
    """One request as its host received it.

    `row` maps form fields to values; a body that is no form is the field `body`. An envelope may have replaced the
    row by the body itself. `headers` has the HTTP headers as the client wrote them (none over gRPC) and, for each
    field, a mapping with the field's content type.
    """

    row: object
    headers: Mapping[str, object] = _NO_HEADERS

    def header(self, name: str) -> str:
        """Return the value of an HTTP header, "" if it is missing. Names are compared without case.

        >>> RawRequest({}, {"Accept": "application/x-npy"}).header("accept")
        'application/x-npy'
        """
        headers = self.headers
        value = headers.get(_titled(name)) or headers.get(name)  # as nearly every client writes them
        if type(value) is str:
            return value
        length = len(name)
        for key, value in headers.items():
            if len(key) == length and isinstance(value, str) and key.lower() == name:
                return value
        return ""

    def written(self) -> object:
        """Return the body as the host gave it; None if there is none."""
        try:
            return self.body().value
        except RequestError:
            return None

    @property
    def content_length(self) -> int:
        """Return the bytes of the body as its HTTP header tells them, 0 if it does not."""
        given = self.headers.get("Content-Length")  # as nearly every client writes it
        given = given if isinstance(given, str) else self.header("content-length")
        return int(given) if len(given) < 16 and given.isascii() and given.isdigit() else 0

    @property
    def is_describe_request(self) -> bool:
        """Whether it asks for the model's description and readiness, as TorchServe itself does.

        A header of that name in an inference request comes with a body, and means nothing.

        >>> RawRequest({}, {"describe": "True"}).is_describe_request
        True
        >>> RawRequest({"body": b""}, {"describe": "True"}).is_describe_request
        True
        >>> RawRequest({"body": b"[1]"}, {"describe": "True"}).is_describe_request
        False
        """
        if self.headers.get("describe") != "True" or not isinstance(self.row, Mapping):
            return False
        return all(isinstance(value, (bytes, bytearray, str)) and not value for value in self.row.values())

    @property
    def is_explain_request(self) -> bool:
        """Whether the request was sent to the explanations address."""
        return self.headers.get("explain") == "True"

    @property
    def accepts_npy(self) -> bool:
        """Whether the client accepts a .npy file as the response."""
        return NPY in _accepted(self.header("accept"))

    @property
    def accepts_json(self) -> bool:
        """Whether the client also accepts JSON, for a response that .npy cannot hold."""
        return bool(_accepted(self.header("accept")) & {JSON, "application/*", "*/*"})

    def body(self) -> Body:
        """Return the body, whichever field holds it.

        Raises:
            RequestError: 400, there is no body, or not as much as its headers tell.
        """
        if not isinstance(self.row, dict):
            return Body(self.row, _plain_type(self.header("content-type")), self._json_bytes(self.row))
        for name in BODY_FIELDS:
            if name in self.row:
                value = self.row[name]
                return Body(value, self._field_type(name), self._json_bytes(value))
        raise malformed(_no_body(self.row, _plain_type(self.header("content-type"))))

    def _json_bytes(self, value: object) -> int | None:
        told = self.headers.get(JSON_LENGTH_HEADER) or self.headers.get(_LOWER_LENGTH)  # as HTTP/1 and HTTP/2 write it
        if not told or not isinstance(value, (bytes, bytearray)):
            return None
        return json_bytes(value, str(told))

    def _field_type(self, name: str) -> str:
        own = self.headers.get(name)
        given = own.get("content-type") if isinstance(own, dict) else None
        return _plain_type(given if isinstance(given, str) and given else self.header("content-type"))


_titled = lru_cache(maxsize=16)(str.title)
_LOWER_LENGTH = JSON_LENGTH_HEADER.lower()


@lru_cache(maxsize=256)  # few clients, each with its own
def _accepted(accept: str) -> frozenset[str]:
    return frozenset(map(_plain_type, accept.split(",")))


@lru_cache(maxsize=256)
def _plain_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _no_body(row: Mapping[object, object], content_type: str) -> str:
    first = str(next(iter(row), ""))
    # TorchServe passes a form that it could not parse as a row without fields.
    if first.lstrip()[:1] in {"[", "{"} or (not row and content_type in _FORMS):
        return (
            "the body came as a web form: send JSON with the header 'Content-Type: application/json' "
            "(curl -d needs -H 'Content-Type: application/json')"
        )
    if not row:
        return "the request has no body"
    return "the form has no field 'body' or 'data': send the input as the request's body, or in a field of that name"


LONGEST_ID = 512
"""Characters of a request's id, which its response repeats."""

Outputs = tuple[torch.Tensor, ...]
"""The output tensors of one sequence, in the order of the model's outputs."""


class SequenceInput(NamedTuple):
    """One sequence: a tensor of the `item_shape` of each declared input, in their order, and its number
    of timesteps.

    A model without time has length 1.
    """

    tensors: tuple[torch.Tensor, ...]
    length: int


class InferenceRequest(NamedTuple):
    """An accepted request."""

    sequences: tuple[SequenceInput, ...]
    format: RequestFormat
    """The format that encodes the response."""
    npy: bool = False
    """Whether the response is a .npy file: there is one sequence and one output."""
    id: str = ""
    """V2: the client's id of the request, repeated in the response."""
    batched: bool = False
    """V2: whether the sequences came as one tensor with a batch dimension, as the outputs then do."""
    timeout_ms: float | None = None
    """V2: the time to live that the body names."""
    outputs: tuple[WantedOutput, ...] | None = None
    """V2: the outputs that the response has; None: all, as JSON numbers."""


class RequestFormat(Protocol):
    """A format of requests and of their responses.

    `matches` and `decode` take a body's JSON value where `parses_json` is set, and else the `Body` itself.
    """

    name: ClassVar[str]
    """The format's name in the digest of a session's request: it must not change."""
    parses_json: ClassVar[bool]
    response_types: ClassVar[tuple[str, ...]]
    """The media types that the Accept header chooses from; empty: the header is ignored."""

    @property
    def sends_outputs(self) -> bool:
        """Whether a response has the outputs themselves, so that its size follows from theirs."""

    def matches(self, value: object) -> bool:
        """Whether the body is in this format."""

    def decode(self, value: object) -> InferenceRequest:
        """Decode the sequences of a body.

        Raises:
            RequestError: the body is not valid, or the model does not accept it.
        """

    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode the outputs of a request's sequences as a body and its content type.

        `session` has the fields of the session, for the response to a session's request.

        Raises:
            RequestError: the format cannot represent the outputs.
        """

    def encode_error(self, error: RequestError, value: object) -> dict[str, object] | None:
        """Return the keys of an error body beside `code`, `type` and `message`.

        None where the format has none.

        `value` is the refused body's JSON value, None if it is not JSON; or the accepted request, if it failed later.
        """


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

        Raises:
            RequestError: 400, the model has several inputs.
        """
        inputs = self.manifest.inputs
        if len(inputs) == 1:
            return inputs[0].name
        names = ", ".join(repr(spec.name) for spec in inputs)
        raise invalid(f"{body} is accepted only if the model has one input; send an object with {names}")


def read_sequences(
    sequences: Sequence[Mapping[str, object]], manifest: Manifest, path: str
) -> tuple[SequenceInput, ...]:
    """Read several sequences; an error names the first refused one as `path` with its index.

    Raises:
        RequestError: as `read_sequence`; 400 if there is no sequence, 413 if there are too many, or too many timesteps.
    """
    check_sequence_count(len(sequences), path, manifest)
    read: list[SequenceInput] = []
    timesteps = 0
    for index, values in enumerate(sequences):
        read.append(_read_indexed(values, manifest, f"{path}[{index}]"))
        timesteps += read[-1].length
        check_timesteps(timesteps, path, manifest)
    return tuple(read)


def check_sequence_count(sequences: int, path: str, manifest: Manifest) -> None:
    """Refuse a request without sequences, and one with too many before any tensor is made.

    Raises:
        RequestError: 400 or 413.
    """
    if sequences == 0:
        raise invalid(f"{path} is empty: at least one sequence is needed")
    most = manifest.limits.sequences
    if sequences > most:
        raise RequestError("TooManySequences", f"{path} has {sequences} sequences, one request may have at most {most}")


def check_timesteps(timesteps: int, path: str, manifest: Manifest) -> None:
    """Refuse a request with more timesteps than one may have.

    Raises:
        RequestError: 413.
    """
    most = manifest.limits.timesteps
    if timesteps > most:
        raise RequestError(
            "TooManyTimesteps", f"{path} has {timesteps} timesteps or more, one request may have at most {most}"
        )


def _read_indexed(values: Mapping[str, object], manifest: Manifest, path: str) -> SequenceInput:
    try:
        return read_sequence(values, manifest)
    except RequestError as error:
        raise error.with_context(path) from None


def read_sequence(values: Mapping[str, object], manifest: Manifest) -> SequenceInput:
    """Read one sequence from its inputs by name, each as nested lists or as a tensor.

    Raises:
        RequestError: 400 if the inputs are not those declared, 413 if the sequence is longer than every bucket, 422 if
            padding is not possible and the length is none of the accepted ones.
    """
    _check_names(values, manifest)
    _check_written_lengths(values, manifest)
    tensors = tuple([_read_input(values[spec.name], spec) for spec in manifest.inputs])
    length = _common_length(tensors, manifest.inputs)
    if length is None:
        return SequenceInput(tensors, 1)
    longest = manifest.longest
    if length > longest and manifest.overflow == "truncate":
        return SequenceInput(tuple(map(_cut, tensors, manifest.inputs, [longest] * len(tensors))), longest)
    _check_length(length, manifest)
    return SequenceInput(tensors, length)


def _check_names(values: Mapping[str, object], manifest: Manifest) -> None:
    if values.keys() == manifest.input_names:
        return
    names = [spec.name for spec in manifest.inputs]
    missing = [name for name in names if name not in values]
    unknown = [name for name in values if name not in names]
    problems = [f"missing: {', '.join(map(repr, missing))}"] * bool(missing)
    problems += [f"unknown: {', '.join(map(abbreviate, unknown[:3]))}"] * bool(unknown)
    raise invalid(f"the model's inputs are {', '.join(map(repr, names))}; {'; '.join(problems)}")


def _check_written_lengths(values: Mapping[str, object], manifest: Manifest) -> None:
    """Refuse lists with more timesteps than are served, before tensors are made of them."""
    most = manifest.limits.timesteps if manifest.overflow == "truncate" else manifest.longest
    for spec in manifest.inputs:
        value = values[spec.name]
        if type(value) is list and len(value) > most and spec.item_shape[:1] == ("time",):
            check_timesteps(len(value), f"input {spec.name!r}", manifest)
            _check_length(len(value), manifest)


def _read_input(value: object, spec: TensorSpec) -> torch.Tensor:
    return convert_tensor(value, spec) if isinstance(value, torch.Tensor) else tensor_from_lists(value, spec)


def _common_length(tensors: Sequence[torch.Tensor], inputs: Sequence[TensorSpec]) -> int | None:
    length: int | None = None
    first = ""
    for index, spec in enumerate(inputs):
        for axis in spec.item_time_dims:
            timesteps = tensors[index].shape[axis]
            if length is None:
                length, first = timesteps, spec.name
            elif timesteps != length:
                raise invalid(
                    f"input {spec.name!r} has {timesteps} timesteps, but input {first!r} has {length}: "
                    "all inputs of one sequence must have the same number"
                )
    return length


def _check_length(length: int, manifest: Manifest) -> None:
    if length > manifest.limits.timesteps:
        check_timesteps(length, "the sequence", manifest)
    if length < manifest.shortest:
        raise RequestError("LengthNotAccepted", str(SequenceTooShort(length, manifest.shortest)))
    lengths = manifest.grid.lengths
    if manifest.padding == "exact_lengths":
        if length not in lengths:
            status = 413 if length > lengths[-1] else None
            raise RequestError("LengthNotAccepted", str(LengthNotAccepted(length, lengths)), status=status)
    elif length > manifest.longest:
        available = lengths if manifest.longest == lengths[-1] else (manifest.longest,)
        raise RequestError("SequenceTooLong", str(SequenceTooLong(length, available)))


def _cut(tensor: torch.Tensor, spec: TensorSpec, length: int) -> torch.Tensor:
    for axis in spec.item_time_dims:
        tensor = tensor.narrow(axis, 0, length)
    return tensor.contiguous()
