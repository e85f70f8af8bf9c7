"""The arguments of a call of the model's own code, made of the tensors of a request."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import torch
from torch.nn.utils.rnn import pack_padded_sequence

from ...config.own_model import MaskForm, OwnModel

MakeArgument = Callable[[Sequence[torch.Tensor], list[int]], Any]
"""A function of a batch's tensors and of the timesteps of each row."""


class Fields(dict[str, Any]):  # type: ignore[type-arg,unused-ignore]
    """Values by name that are also attributes, as those of a batch of torchtext are."""

    def __getattr__(self, name: str) -> Any:
        """Return a value. Raises `AttributeError`: there is none of this name."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def argument_makers(model: OwnModel) -> dict[str, MakeArgument]:
    """Return a function for each keyword argument of a call."""
    return {name: _maker(part, model.mask) for name, part in model.arguments.items()}


def _maker(part: Mapping[str, Any], mask: Optional[MaskForm]) -> MakeArgument:
    ((kind, value),) = part.items()
    if kind == "mask" and mask is not None:
        dtype, sizes, filled = getattr(torch, mask.dtype), mask.shape, mask.value
        return lambda _, lengths: torch.full([lengths[0] if size < 0 else size for size in sizes], filled, dtype=dtype)
    if kind == "tuple":
        makers = [_maker(below, mask) for below in value]
        return lambda tensors, lengths: tuple([make(tensors, lengths) for make in makers])
    if kind == "fields":
        named = {name: _maker(below, mask) for name, below in value.items()}
        return lambda tensors, lengths: Fields({name: make(tensors, lengths) for name, make in named.items()})
    return _leaf_maker(kind, value)


def _leaf_maker(kind: str, value: Any) -> MakeArgument:
    if kind == "input":
        return lambda tensors, _: tensors[value]
    if kind == "packed":
        index, batch_first = value
        return lambda tensors, lengths: pack_padded_sequence(tensors[index], torch.tensor(lengths), batch_first)
    if kind == "lengths":
        return _LENGTHS[value]
    if isinstance(value, (list, dict)):
        return lambda tensors, lengths: copy.deepcopy(value)  # a request may change its own
    return lambda tensors, lengths: value


_LENGTHS: Mapping[str, MakeArgument] = {
    "tensor": lambda tensors, lengths: torch.tensor(lengths),
    "numpy": lambda tensors, lengths: torch.tensor(lengths).numpy(),
    "list": lambda tensors, lengths: list(lengths),
}
