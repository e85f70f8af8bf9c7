"""Arguments of forward() in the exporter: tuples, dictionaries, masks; and outputs that are plain tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from ...config.forward import MaskConfig
from ..errors import LoweringError


class Fields(dict[str, Any]):
    """Values by name that are also attributes, as those of a NamedTuple or a batch of torchtext are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{name}: the configuration names {', '.join(self)} only") from None


def nested_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Group values by names: `state.0` is an element of a tuple, `batch.ids` one of a dictionary.

    >>> nested_arguments({"x": 1, "state.0.0": 2, "state.0.1": 3, "state.1": 4})
    {'x': 1, 'state': ((2, 3), 4)}
    >>> nested_arguments({"batch.ids": 1, "batch.pair.0": 2})
    {'batch': {'ids': 1, 'pair': (2,)}}

    Raises `LoweringError`: a tuple lacks an element, or its elements are out of order.
    """
    return {argument: _value_of(argument, parts) for argument, parts in _grouped(values).items()}


def _grouped(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group values by what their names have before the first dot."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        groups.setdefault(first, {})[rest] = value
    return groups


def _value_of(name: str, parts: Mapping[str, Any]) -> Any:
    """Return the only value, the tuple of the values by their positions, or the dictionary by their keys."""
    if list(parts) == [""]:
        return parts[""]
    groups = _grouped(parts)
    if not any(place.isdigit() for place in groups):
        return Fields({key: _value_of(f"{name}.{key}", group) for key, group in groups.items()})
    if sorted(groups) != sorted(map(str, range(len(groups)))):
        listed = ", ".join(f"{name}.{position}".rstrip(".") for position in groups)
        raise LoweringError(
            f"inputs: {listed} are not all elements of a tuple {name}: they are named {name}.0, {name}.1, ..."
        )
    ordered = [str(index) for index in range(len(groups))]
    return tuple(_value_of(f"{name}.{position}", groups[position]) for position in ordered)


def mask_of_lengths(mask: MaskConfig, lengths: torch.Tensor, time: Any) -> torch.Tensor:
    """Return the mask of a batch padded to `time` timesteps, in the layout and type of the configuration.

    >>> mask_of_lengths(MaskConfig(name="m", dtype="int64", true_for="padding"), torch.tensor([3, 1]), 3)
    tensor([[0, 0, 0],
            [0, 1, 1]])
    """
    timesteps = torch.arange(time, device=lengths.device) < lengths.unsqueeze(1)
    return in_layout(mask, timesteps if mask.true_for == "timesteps" else ~timesteps)


def in_layout(mask: MaskConfig, values: torch.Tensor) -> torch.Tensor:
    """Return values[B, T] in the layout and type of the configuration."""
    if mask.shape.index("time") < mask.shape.index("batch"):
        values = values.t()
    for dim, size in enumerate(mask.shape):
        if size == 1:
            values = values.unsqueeze(dim)
    return values.to(getattr(torch, mask.dtype))


def plain_outputs(value: Any) -> Any:
    """Return what forward() returns with dataclasses, namespaces and mappings of its own classes as dicts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_outputs(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, SimpleNamespace):
        return plain_outputs(vars(value))
    if isinstance(value, Mapping):
        return {key: plain_outputs(own) for key, own in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain_outputs(own) for own in value)
    return value
