"""Any number of rows on a program of a fixed number: whole chunks along dimension 0, the last one padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..backends.interface import Run
from ..backends.signature import Signature, WrongInput, dtype_name


def in_chunks(run: Run, signature: Signature, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`run` on chunks of the program's own rows, put together again.

    Raises:
        WrongInput: (a ValueError) another number of inputs, another dtype, another size beside dimension 0, unequal
            numbers of rows, or none.
    """
    rows = check(signature, inputs)
    size = int(next(iter(signature.inputs.values())).shape[0])
    answers = [run([padded(tensor[begin:end], size) for tensor in inputs]) for begin, end in chunks(rows, size)]
    return [torch.cat(list(parts))[:rows] for parts in zip(*answers, strict=True)]


def chunks(rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Where each chunk begins and ends.

    >>> list(chunks(8, 3))
    [(0, 3), (3, 6), (6, 8)]
    """
    for begin in range(0, rows, size):
        yield begin, min(begin + size, rows)


def padded(chunk: torch.Tensor, size: int) -> torch.Tensor:
    """A chunk with its last row again until it has `size` rows: a valid row whatever the model asks of one.

    >>> padded(torch.tensor([3, 4]), 4)
    tensor([3, 4, 4, 4])
    """
    missing = size - chunk.shape[0]
    return torch.cat([chunk, chunk[-1:].expand(missing, *chunk.shape[1:])]) if missing else chunk


def check(signature: Signature, inputs: Sequence[torch.Tensor]) -> int:
    """The number of rows of a call.

    Raises:
        WrongInput: see `in_chunks`.
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
