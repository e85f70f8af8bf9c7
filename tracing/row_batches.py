"""Any number of rows on a program of a fixed number: whole chunks along dimension 0, the last one padded.

Chunks along dimension 0 give what the whole gives only where each row is computed for itself. A compiled program of one
row cannot tell. So the function is run in eager mode on twice the rows, and both halves must be what they are alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..backends.interface import LoadedProgram
from ..backends.signature import Signature, WrongInput, dtype_name
from .export import Function


def run_in_batches(run: LoadedProgram, signature: Signature, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`run` on chunks of the program's own rows, put together again.

    Raises:
        WrongInput: (a ValueError) another number of inputs, another dtype, another size beside dimension 0, unequal
            numbers of rows, or none.
    """
    rows = check_rows(signature, inputs)
    size = int(next(iter(signature.inputs.values())).shape[0])
    answers = [run([pad_rows(tensor[begin:end], size) for tensor in inputs]) for begin, end in batch_ranges(rows, size)]
    return [torch.cat(list(parts))[:rows] for parts in zip(*answers, strict=True)]


def batch_ranges(rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Where each chunk begins and ends.

    >>> list(batch_ranges(8, 3))
    [(0, 3), (3, 6), (6, 8)]
    """
    for begin in range(0, rows, size):
        yield begin, min(begin + size, rows)


def pad_rows(chunk: torch.Tensor, size: int) -> torch.Tensor:
    """A chunk with its last row again until it has `size` rows: a valid row whatever the model asks of one.

    >>> pad_rows(torch.tensor([3, 4]), 4)
    tensor([3, 4, 4, 4])
    """
    missing = size - chunk.shape[0]
    return torch.cat([chunk, chunk[-1:].expand(missing, *chunk.shape[1:])]) if missing else chunk


def check_rows(signature: Signature, inputs: Sequence[torch.Tensor]) -> int:
    """The number of rows of a call.

    Raises:
        WrongInput: see `run_in_batches`.
    """
    if len(inputs) != len(signature.inputs):
        raise WrongInput(f"{len(inputs)} inputs, but {len(signature.inputs)} are taken: {', '.join(signature.inputs)}")
    for (name, wanted), tensor in zip(signature.inputs.items(), inputs, strict=True):
        if dtype_name(tensor) != wanted.dtype or list(tensor.shape[1:]) != list(wanted.shape[1:]) or not tensor.dim():
            expected = ["any", *wanted.shape[1:]]
            raise WrongInput(
                f"input {name!r} is {dtype_name(tensor)} {list(tensor.shape)}, expected {wanted.dtype} "
                f"[{', '.join(map(str, expected))}]: only dimension 0 may differ from the traced one"
            )
    rows = {name: int(tensor.shape[0]) for name, tensor in zip(signature.inputs, inputs, strict=True)}
    if len(set(rows.values())) != 1:
        words = ", ".join(f"{name} has {count}" for name, count in rows.items())
        raise WrongInput(f"dimension 0 must be the same in all inputs: {words}")
    count = next(iter(rows.values()))
    if count == 0:
        raise WrongInput("there are no rows: dimension 0 is 0")
    return count


_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 2e-2  # of 16-bit floating point


def not_batchable_reason(func: Function, tensors: Sequence[torch.Tensor], in_tree: pytree.TreeSpec) -> str | None:
    """Why calls cannot be cut along dimension 0; None where every row was answered for itself.

    >>> import torch
    >>> _, in_tree = pytree.tree_flatten((0,))
    >>> not_batchable_reason(torch.relu, [torch.rand(2, 3)], in_tree) is None
    True
    >>> print(not_batchable_reason(lambda x: x.cumsum(0), [torch.rand(2, 3)], in_tree))
    dimension 0 is no batch: answer 0 of a row changes with the rows before it or behind it
    """
    sizes = {tuple(tensor.shape[:1]) for tensor in tensors}
    if len(sizes) != 1 or () in sizes:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        return f"dimension 0 is not the same size in all inputs: {shapes}"
    others = [_other_rows(tensor) for tensor in tensors]
    both = [torch.cat([tensor, other]) for tensor, other in zip(tensors, others, strict=True)]
    try:
        whole = _answers(func, both, in_tree)
        first, second = (_answers(func, half, in_tree) for half in (tensors, others))
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


def _answers(func: Function, tensors: Sequence[torch.Tensor], in_tree: pytree.TreeSpec) -> list[Any]:
    arguments = pytree.tree_unflatten([tensor.clone() for tensor in tensors], in_tree)
    with torch.no_grad():
        return pytree.tree_leaves(func(*arguments))


def _is_joined(whole: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether one answer is two others, one behind the other along dimension 0."""
    if first.dim() == 0 or first.shape != second.shape or whole.shape != (2 * first.shape[0], *first.shape[1:]):
        return False
    tolerance = _TOLERANCES.get(whole.dtype, _COARSE) if whole.is_floating_point() else 0.0
    return torch.allclose(whole, torch.cat([first, second]), rtol=tolerance, atol=tolerance, equal_nan=True)
