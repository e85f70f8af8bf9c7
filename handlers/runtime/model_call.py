"""One call of the model's own code: the arguments of a request, and the tensors of what it returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Optional

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ...config.own_model import MaskForm, OwnModel

MakeArgument = Callable[[Sequence[torch.Tensor], int], Any]
"""A function of a request's tensors and its timesteps."""


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
        return _mask_maker(mask)
    if kind == "tuple":
        makers = [_maker(below, mask) for below in value]
        return lambda tensors, length: tuple([make(tensors, length) for make in makers])
    if kind == "fields":
        named = {name: _maker(below, mask) for name, below in value.items()}
        return lambda tensors, length: Fields({name: make(tensors, length) for name, make in named.items()})
    return _leaf_maker(kind, value)


def _leaf_maker(kind: str, value: Any) -> MakeArgument:
    if kind == "input":
        return lambda tensors, _: tensors[value]
    if kind == "packed":
        index, batch_first = value
        return lambda tensors, length: pack_padded_sequence(tensors[index], _lengths(length), batch_first)
    if kind == "lengths":
        return {"tensor": _tensor_of, "numpy": _numpy_of, "list": _list_of}[value]
    return lambda tensors, length: value


def _lengths(length: int) -> torch.Tensor:
    return torch.tensor([length])


def _tensor_of(tensors: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    return _lengths(length)


def _numpy_of(tensors: Sequence[torch.Tensor], length: int) -> Any:
    return _lengths(length).numpy()


def _list_of(tensors: Sequence[torch.Tensor], length: int) -> list[int]:
    return [length]


def _mask_maker(mask: MaskForm) -> MakeArgument:
    dtype, shape = getattr(torch, mask.dtype), mask.shape
    return lambda tensors, length: torch.full([length if size < 0 else size for size in shape], mask.value, dtype=dtype)


def output_tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of what a model returns, with their places: `logits`, `1.0`, or empty for a single one.

    Numbers, lists of numbers and numpy arrays become tensors; None is left out.

    >>> [(place, tensor.tolist()) for place, tensor in output_tensors({"ids": [3, 4], "score": 0.5, "rest": None})]
    [('ids', [3, 4]), ('score', 0.5)]

    Raises `TypeError`: a part is of another type.
    """
    if value is None:
        return
    if isinstance(value, torch.Tensor):
        yield path, _plain(value)
    elif isinstance(value, PackedSequence):
        yield path, pad_packed_sequence(value, batch_first=True)[0]
    elif isinstance(value, (bool, int, float)) or hasattr(value, "__array__"):
        yield path, torch.as_tensor(value)
    elif _are_numbers(value):
        yield path, torch.tensor(value)
    else:
        for key, item in _items(value, path):
            yield from output_tensors(item, f"{path}.{key}" if path else str(key))


def _items(value: Any, path: str) -> Iterator[tuple[object, Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return iter([(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)])
    if isinstance(value, SimpleNamespace):
        return iter(vars(value).items())
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (list, tuple)):
        return zip(getattr(value, "_fields", range(len(value))), value)
    place = f" as {path}" if path else ""
    raise TypeError(f"it returns a {type(value).__name__}{place}, and every output must be a tensor or numbers")


def _are_numbers(value: Any) -> bool:
    """Whether a value is a list of numbers, or lists of them; an empty list is one, too."""
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields"):
        return False
    return all(isinstance(item, (bool, int, float)) or _are_numbers(item) for item in value)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same values that has all its elements in memory."""
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
