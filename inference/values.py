"""Sequences as users write them, and the model's outputs as users read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from ..bucketing.shapes import TensorSpec
from ..config.manifest import Manifest
from ..handlers.formats.request import SequenceInput
from ..handlers.formats.sequences import read_sequence
from ..handlers.responses import RequestError


class InvalidSequence(ValueError):
    """A sequence that the model does not take. The message has its index, and what is expected."""


def read_one(value: object, index: int, manifest: Manifest) -> SequenceInput:
    """Read one sequence: nested lists, an array or a tensor; or a mapping from each input's name to one.

    Raises `InvalidSequence`: the values are not those that the model takes.
    """
    try:
        return read_sequence(_by_name(value, manifest.inputs), manifest)
    except RequestError as error:
        raise InvalidSequence(f"sequences[{index}]: {error.message}") from None


def _by_name(value: object, inputs: Sequence[TensorSpec]) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return {name: _without_numpy(one) for name, one in value.items()}
    if len(inputs) > 1:
        names = ", ".join(spec.name for spec in inputs)
        raise RequestError("InvalidInput", f"the model has several inputs: expected a mapping with {names}")
    return {inputs[0].name: _without_numpy(value)}


def _without_numpy(value: object) -> object:
    """Convert a numpy array to a tensor; a tuple to a list."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, (list, torch.Tensor)) or not hasattr(value, "__array__"):
        return value
    import numpy as np

    try:
        return torch.from_numpy(np.array(value, order="C"))  # a copy: the array may be read-only
    except TypeError as error:
        raise RequestError("InvalidInput", str(error)) from None


def write_one(outputs: Sequence[torch.Tensor], specs: Sequence[TensorSpec], *, as_numpy: bool) -> object:
    """Return the outputs of one sequence: the value of the only output, or a dict by the names of several."""
    # numpy has no bfloat16: its values are exact in float32, as in a .npy response.
    read = [tensor.float() if as_numpy and tensor.dtype == torch.bfloat16 else tensor for tensor in outputs]
    values = [tensor.numpy().copy() if as_numpy else tensor.tolist() for tensor in read]
    return values[0] if len(specs) == 1 else dict(zip([spec.name for spec in specs], values, strict=True))


LARGEST = 1024
"""Sequences of one window: enough for good plans, few enough for quick ones and little memory."""


def windows(lengths: Sequence[int], largest: int = LARGEST) -> Iterator[list[int]]:
    """Yield the indices of all sequences, the longest first, in windows of at most `largest`.

    Sequences of one window have similar lengths, so that its plan is nearly as good as a plan of them all.

    >>> list(windows([5, 1, 9, 1], largest=3))
    [[2, 0, 1], [3]]
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    for start in range(0, len(order), largest):
        yield order[start : start + largest]
