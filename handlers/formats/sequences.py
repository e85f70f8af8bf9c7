"""Sequences of a request: the tensors of named inputs, checked against the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ...bucketing.errors import SequenceTooLong
from ...bucketing.shapes import TensorSpec
from ...config.manifest import Manifest
from ..responses import RequestError, abbreviate, invalid
from .request import SequenceInput
from .tensors import convert_tensor, tensor_from_lists


def read_sequences(
    sequences: Sequence[Mapping[str, object]], manifest: Manifest, path: str
) -> tuple[SequenceInput, ...]:
    """Read several sequences; an error names the first refused one as `path` with its index.

    Raises `RequestError`: as `read_sequence`; 400 if there is no sequence, 413 if there are too many, or too many
    timesteps.
    """
    check_sequence_count(len(sequences), path, manifest)
    read: list[SequenceInput] = []
    timesteps = 0
    for index, values in enumerate(sequences):
        try:
            read.append(read_sequence(values, manifest))
        except RequestError as error:
            raise error.with_context(f"{path}[{index}]") from None
        timesteps += read[-1].length
        check_timesteps(timesteps, path, manifest)
    return tuple(read)


def check_sequence_count(sequences: int, path: str, manifest: Manifest) -> None:
    """Refuse a request without sequences, and one with too many before any tensor is made.

    Raises `RequestError`: 400 or 413.
    """
    if sequences == 0:
        raise invalid(f"{path} is empty: at least one sequence is needed")
    most = manifest.limits.sequences
    if sequences > most:
        raise RequestError("TooManySequences", f"{path} has {sequences} sequences, one request may have at most {most}")


def check_timesteps(timesteps: int, path: str, manifest: Manifest) -> None:
    """Refuse a request with more timesteps than one may have. Raises `RequestError`: 413."""
    most = manifest.limits.timesteps
    if timesteps > most:
        raise RequestError(
            "TooManyTimesteps", f"{path} has {timesteps} timesteps or more, one request may have at most {most}"
        )


def read_sequence(values: Mapping[str, object], manifest: Manifest) -> SequenceInput:
    """Read one sequence from its inputs by name, each as nested lists or as a tensor.

    Raises `RequestError`: 400 if the inputs are not those declared; 413 if the sequence is longer than every bucket;
    422 if padding is not possible and the length is not an accepted one.
    """
    _check_names(values, manifest)
    _check_written_lengths(values, manifest)
    tensors = tuple([_read_input(values[spec.name], spec) for spec in manifest.inputs])
    length = _common_length(tensors, manifest.inputs)
    if length is None:
        return SequenceInput(tensors, 1)
    longest = manifest.longest
    if length > longest and manifest.overflow == "truncate":
        return SequenceInput(tuple(map(_cut, tensors, manifest.inputs, [longest] * len(tensors))), longest, cut=True)
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
    problems += ["the server counts the timesteps itself"] * any("length" in name.lower() for name in unknown)
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
    check_timesteps(length, "the sequence", manifest)
    if length < manifest.shortest_accepted:
        raise RequestError(
            "LengthNotAccepted",
            f"a sequence of {length} timesteps is not accepted: the model takes {manifest.shortest_accepted} or more",
        )
    lengths = manifest.grid.lengths
    if length > manifest.longest:
        available = lengths if manifest.longest == lengths[-1] else (manifest.longest,)
        raise RequestError("SequenceTooLong", str(SequenceTooLong(length, available)))


def _cut(tensor: torch.Tensor, spec: TensorSpec, length: int) -> torch.Tensor:
    for axis in spec.item_time_dims:
        tensor = tensor.narrow(axis, 0, length)
    return tensor.contiguous()
