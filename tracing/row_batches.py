"""Row batches: any number of rows on a program with a fixed number, with the last batch padded.

Batches along dimension 0 give the same result as the whole only if each row is computed independently. A compiled
program with one row cannot show that. So the function runs in eager mode on twice the rows, and each half must equal
its own result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..backends.interface import LoadedProgram
from ..backends.signature import Signature, WrongInput, dtype_name
from .export import Function


def run_in_batches(run: LoadedProgram, signature: Signature, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Call `run` on batches of the program's number of rows, and concatenate the outputs.

    Raises `WrongInput`: (a ValueError) wrong number of inputs, wrong dtype, wrong size of any dimension but 0, unequal
    numbers of rows, or no rows.
    """
    rows = _check_rows(signature, inputs)
    size = int(next(iter(signature.inputs.values())).shape[0])
    batches = ([tensor[first : first + size] for tensor in inputs] for first in range(0, rows, size))
    outputs = [run([pad_rows(tensor, size) for tensor in batch]) for batch in batches]
    return [torch.cat(list(parts))[:rows] for parts in zip(*outputs, strict=True)]


def pad_rows(batch: torch.Tensor, size: int) -> torch.Tensor:
    """Repeat the last row until the batch has `size` rows: it is valid for every model.

    >>> pad_rows(torch.tensor([3, 4]), 4)
    tensor([3, 4, 4, 4])
    """
    missing = size - batch.shape[0]
    return torch.cat([batch, batch[-1:].expand(missing, *batch.shape[1:])]) if missing else batch


def _check_rows(signature: Signature, inputs: Sequence[torch.Tensor]) -> int:
    """Check the inputs of a call, and return their number of rows. Raises `WrongInput`: see `run_in_batches`."""
    if len(inputs) != len(signature.inputs):
        raise WrongInput(f"{len(inputs)} inputs, expected {len(signature.inputs)}: {', '.join(signature.inputs)}")
    for (name, wanted), tensor in zip(signature.inputs.items(), inputs, strict=True):
        if dtype_name(tensor) != wanted.dtype or list(tensor.shape[1:]) != list(wanted.shape[1:]) or not tensor.dim():
            expected = ["any", *wanted.shape[1:]]
            raise WrongInput(
                f"input {name!r} is {dtype_name(tensor)} {list(tensor.shape)}, expected {wanted.dtype} "
                f"[{', '.join(map(str, expected))}]: only dimension 0 may differ from the example"
            )
    rows = {name: int(tensor.shape[0]) for name, tensor in zip(signature.inputs, inputs, strict=True)}
    if len(set(rows.values())) != 1:
        counts = ", ".join(f"{name} has {count}" for name, count in rows.items())
        raise WrongInput(f"dimension 0 must be the same in all inputs: {counts}")
    count = next(iter(rows.values()))
    if count == 0:
        raise WrongInput("there are no rows: dimension 0 is 0")
    return count


_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 2e-2  # for 16-bit floating point


def not_batchable_reason(func: Function, tensors: Sequence[torch.Tensor], in_tree: pytree.TreeSpec) -> str | None:
    """Explain why dimension 0 is no batch dimension; None if each row is computed independently.

    >>> import torch
    >>> _, in_tree = pytree.tree_flatten((0,))
    >>> not_batchable_reason(torch.relu, [torch.rand(2, 3)], in_tree) is None
    True
    >>> print(not_batchable_reason(lambda x: x.cumsum(0), [torch.rand(2, 3)], in_tree))
    dimension 0 is no batch: output 0 of a row depends on other rows
    """
    sizes = {tuple(tensor.shape[:1]) for tensor in tensors}
    if len(sizes) != 1 or () in sizes:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        return f"dimension 0 is not the same size in all inputs: {shapes}"
    others = [_other_rows(tensor) for tensor in tensors]
    try:
        try:
            results = _whole_and_halves(func, tensors, others, in_tree)
        except Exception:  # noqa: BLE001 - integers may be indices that are valid in their own column only
            results = _whole_and_halves(func, tensors, [_mirrored(tensor) for tensor in tensors], in_tree)
    except Exception as error:  # noqa: BLE001 - any error of the user's function means that it accepts no other batch
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"dimension 0 is no batch: the function accepts no other size there ({text})"
    for index, outputs in enumerate(zip(*results, strict=True)):
        if not _is_concatenation(*outputs):
            return f"dimension 0 is no batch: output {index} of a row depends on other rows"
    return None


def _other_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Create other valid rows; integers that are the same in all rows are reordered within them.

    >>> _other_rows(torch.tensor([[1, 2, 3]]))
    tensor([[2, 3, 1]])
    """
    others = _mirrored(tensor)
    for dim in range(tensor.dim() - 1, 0, -1):
        if not torch.equal(others, tensor):
            break
        others = tensor.roll(-1, dim)
    return others


def _mirrored(tensor: torch.Tensor) -> torch.Tensor:
    """Create rows in reverse order: integers keep their values, because they may be indices or lengths."""
    mirrored = tensor.flip(0)
    return mirrored * 0.5 + 0.25 if tensor.is_floating_point() else mirrored


def _whole_and_halves(
    func: Function, tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor], in_tree: pytree.TreeSpec
) -> list[list[Any]]:
    """Return the outputs for all rows together, for the first half and for the second half."""
    both = [torch.cat([tensor, other]) for tensor, other in zip(tensors, others, strict=True)]
    return [_outputs(func, rows, in_tree) for rows in (both, tensors, others)]


def _outputs(func: Function, tensors: Sequence[torch.Tensor], in_tree: pytree.TreeSpec) -> list[Any]:
    arguments = pytree.tree_unflatten([tensor.clone() for tensor in tensors], in_tree)
    with torch.no_grad():
        return pytree.tree_leaves(func(*arguments))


def _is_concatenation(whole: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether one output is the concatenation of two others along dimension 0."""
    if first.dim() == 0 or first.shape != second.shape or whole.shape != (2 * first.shape[0], *first.shape[1:]):
        return False
    tolerance = _TOLERANCES.get(whole.dtype, _COARSE) if whole.is_floating_point() else 0.0
    return torch.allclose(whole, torch.cat([first, second]), rtol=tolerance, atol=tolerance, equal_nan=True)
