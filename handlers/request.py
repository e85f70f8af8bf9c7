"""What decoding makes of a request body: the sequences to run, and how the client wants the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import torch

from ..bucketing.errors import LengthNotAccepted, SequenceTooLong
from ..bucketing.grid import AnyShape
from ..bucketing.spec import TensorSpec
from ..config.manifest import Manifest
from .errors import RequestError, invalid, shown
from .values import from_lists, from_tensor

MOST_SEQUENCES = 1024
"""In one request. A client with more sends several requests, which share the server fairly with others'."""


class Item(NamedTuple):
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


class Request(NamedTuple):
    """An accepted request."""

    items: tuple[Item, ...]
    form: Form
    npy: bool = False
    """The answer is to be a .npy file: there is one sequence and one output."""
    id: str = ""
    """V2: the client's own, to be given back."""
    batched: bool = False
    """V2: the sequences came as one tensor with a batch dimension, and so go the answers."""


def read_items(sequences: Sequence[Mapping[str, object]], manifest: Manifest, place: str) -> tuple[Item, ...]:
    """The items of several sequences; the first that is refused is named as `place` with its index.

    Raises:
        RequestError: as `read_item`; 400 if there is no sequence, 413 if there are too many.
    """
    check_count(len(sequences), place)
    return tuple(_read_indexed(values, manifest, f"{place}[{index}]") for index, values in enumerate(sequences))


def check_count(sequences: int, place: str) -> None:
    """Refuse no sequences, and too many of them before anything is made of them.

    Raises:
        RequestError: 400 or 413.
    """
    if sequences == 0:
        raise invalid(f"{place} is empty: at least one sequence is needed")
    if sequences > MOST_SEQUENCES:
        message = f"{place} has {sequences} sequences, one request takes {MOST_SEQUENCES}"
        raise RequestError(413, "TooManySequences", message)


def _read_indexed(values: Mapping[str, object], manifest: Manifest, place: str) -> Item:
    try:
        return read_item(values, manifest)
    except RequestError as error:
        raise error.within(place) from None


def read_item(values: Mapping[str, object], manifest: Manifest) -> Item:
    """One sequence from its inputs by name, each as nested lists or as a tensor.

    Raises:
        RequestError: 400 if the inputs are not those declared, 413 if the sequence is longer than every bucket, 422 if
            its length is none that an unpaddable model accepts.
    """
    _check_names(values, manifest.inputs)
    tensors = tuple([_read_input(values[spec.name], spec) for spec in manifest.inputs])
    length = _common_length(tensors, manifest.inputs)
    if length is None:
        return Item(tensors, 1)
    longest = manifest.longest
    if length > longest and manifest.overflow == "truncate":
        return Item(tuple(map(_cut, tensors, manifest.inputs, [longest] * len(tensors))), longest)
    _check_length(length, manifest)
    return Item(tensors, length)


def _check_names(values: Mapping[str, object], inputs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in inputs]
    if values.keys() == set(names):
        return
    missing = [name for name in names if name not in values]
    unknown = [name for name in values if name not in names]
    problems = [f"missing: {', '.join(map(repr, missing))}"] * bool(missing)
    problems += [f"unknown: {', '.join(map(shown, unknown[:3]))}"] * bool(unknown)
    raise invalid(f"the model's inputs are {', '.join(map(repr, names))}; {'; '.join(problems)}")


def _read_input(value: object, spec: TensorSpec) -> torch.Tensor:
    return from_tensor(value, spec) if isinstance(value, torch.Tensor) else from_lists(value, spec)


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
            manifest.grid.exact_length(length)
        elif manifest.longest == manifest.grid.lengths[-1]:
            manifest.grid.fit_length(length)
        else:
            AnyShape(1, manifest.longest).fit_length(length)
    except SequenceTooLong as error:
        raise RequestError(413, "SequenceTooLong", str(error)) from None
    except LengthNotAccepted as error:
        status = 413 if length > error.available[-1] else 422
        raise RequestError(status, "LengthNotAccepted", str(error)) from None  # type: ignore[arg-type]


def _cut(tensor: torch.Tensor, spec: TensorSpec, length: int) -> torch.Tensor:
    for axis in spec.item_time_dims:
        tensor = tensor.narrow(axis, 0, length)
    return tensor.contiguous()
