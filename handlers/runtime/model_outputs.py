"""The tensors among what a model's own code returns, as the archive declares them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from ...bucketing.padding import torch_dtype
from ...bucketing.shapes import TensorSpec


def row_of(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return an output without its batch dimension.

    Raises `RuntimeError`: its dtype, or the number of its dimensions, is not the declared one.
    """
    if tensor.dtype is not torch_dtype(spec):
        if tensor.numel():
            raise RuntimeError(f"the model returned {spec.name} as {tensor.dtype}, the archive declares {spec.dtype}")
        tensor = tensor.to(torch_dtype(spec))  # an empty list has no dtype
    if tensor.dim() == 0 and spec.shape == (1,):
        tensor = tensor.unsqueeze(0)
    if tensor.dim() != len(spec.shape):
        raise RuntimeError(
            f"the model returned {spec.name} as {list(tensor.shape)}, the archive declares {list(spec.shape)}"
        )
    if spec.batch_dim is None or tensor.shape[spec.batch_dim] != 1:
        return tensor
    return tensor.select(spec.batch_dim, 0)


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
    return all(_is_number(item) or _are_numbers(item) for item in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (
        hasattr(value, "__array__") and not isinstance(value, torch.Tensor) and value.ndim == 0
    )


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same values that has all its elements in memory."""
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
