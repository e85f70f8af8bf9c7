"""Whether dimension 0 of a function is a batch: measured in eager mode, on the example with other rows behind it.

Chunks along dimension 0 are answered as the whole is only where each row is answered for itself. A compiled program
of one row cannot tell. So the function is run on twice the rows, and both halves must be what they are alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .export import Function

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 2e-2  # of 16-bit floating point


def why_no_batch(func: Function, tensors: Sequence[torch.Tensor], takes: pytree.TreeSpec) -> str | None:
    """Why calls cannot be cut along dimension 0; None where every row was answered for itself.

    >>> import torch
    >>> _, takes = pytree.tree_flatten((0,))
    >>> why_no_batch(torch.relu, [torch.rand(2, 3)], takes) is None
    True
    >>> print(why_no_batch(lambda x: x.cumsum(0), [torch.rand(2, 3)], takes))
    dimension 0 is no batch: answer 0 of a row changes with the rows before it or behind it
    """
    sizes = {tuple(tensor.shape[:1]) for tensor in tensors}
    if len(sizes) != 1 or () in sizes:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        return f"dimension 0 is not the same size in all inputs: {shapes}"
    others = [_other_rows(tensor) for tensor in tensors]
    both = [torch.cat([tensor, other]) for tensor, other in zip(tensors, others, strict=True)]
    try:
        whole = _answers(func, both, takes)
        first, second = (_answers(func, half, takes) for half in (tensors, others))
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises, it takes no other batch
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"dimension 0 is no batch: the function itself takes no other size there ({text})"
    for index, answers in enumerate(zip(whole, first, second, strict=True)):
        if not _is_joined(*answers):
            return f"dimension 0 is no batch: answer {index} of a row changes with the rows before it or behind it"
    return None


def _other_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Rows of the same domain, as far as that can be known: numbers that are indices or lengths stay among them."""
    mirrored = tensor.flip(0)
    return mirrored * 0.5 + 0.25 if tensor.is_floating_point() else mirrored


def _answers(func: Function, tensors: Sequence[torch.Tensor], takes: pytree.TreeSpec) -> list[Any]:
    arguments = pytree.tree_unflatten([tensor.clone() for tensor in tensors], takes)
    with torch.no_grad():
        return pytree.tree_leaves(func(*arguments))


def _is_joined(whole: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether one answer is two others, one behind the other along dimension 0."""
    if first.dim() == 0 or first.shape != second.shape or whole.shape != (2 * first.shape[0], *first.shape[1:]):
        return False
    tolerance = _TOLERANCES.get(whole.dtype, _COARSE) if whole.is_floating_point() else 0.0
    return torch.allclose(whole, torch.cat([first, second]), rtol=tolerance, atol=tolerance, equal_nan=True)
