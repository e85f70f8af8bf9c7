"""Execution of a plan: requests are padded into buckets, run, and returned in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .errors import InvariantError
from .padding import lengths_tensor, pad, storage_ptr, torch_dtype, unpad, unpadded_views
from .plan import Plan
from .shapes import Bucket, TensorSpec

Tensors = tuple[torch.Tensor, ...]
RunBucket = Callable[[Bucket, list[torch.Tensor]], Sequence[torch.Tensor]]
"""Run a bucket's program on its padded inputs, with lengths[B] last if the programs take lengths."""
Pad = Callable[[Sequence[torch.Tensor], TensorSpec, Bucket], torch.Tensor]
"""`padding.pad`, or a function that writes other values into the padding."""


def execute(
    plan: Plan,
    requests: Sequence[Sequence[torch.Tensor]],
    lengths: Sequence[int],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    takes_lengths: bool,
    run: RunBucket,
    pad: Pad = pad,
) -> list[Tensors]:
    """Return the outputs of all requests, in their order.

    A request has one tensor per input, of the input's `item_shape`, and likewise one per output. The outputs are views
    of the tensors that `run` returned, which the engine no longer uses; no two outputs share memory, nor does an output
    with an input.

    Raises `ValueError`: a request's tensor has not the shape or dtype of its input.
    Raises `InvariantError`: the plan leaves a request out, or a program's outputs are not as declared.
    """
    outputs_of: dict[int, Tensors] = {}
    for call in plan.calls:
        rows, own = call.rows, [lengths[row] for row in call.rows]
        padded = [pad([requests[row][index] for row in rows], spec, call.bucket) for index, spec in enumerate(inputs)]
        if takes_lengths:
            padded.append(lengths_tensor(own, call.bucket))
        results = run(call.bucket, padded)
        check_outputs(results, outputs, call.bucket)
        outputs_of.update(zip(rows, zip(*_parts(results, outputs, own, padded))))
    if sorted(outputs_of) != list(range(len(requests))):
        raise InvariantError(f"the plan for {len(requests)} requests contains {sorted(outputs_of)}")
    return [outputs_of[row] for row in range(len(requests))]


def _parts(
    results: Sequence[torch.Tensor],
    outputs: Sequence[TensorSpec],
    lengths: Sequence[int],
    padded: Sequence[torch.Tensor],
) -> list[list[torch.Tensor]]:
    """Unpad each output. A tensor that the program returns twice, or that is one of its inputs, is copied."""
    used = {storage_ptr(tensor) for tensor in padded}
    parts = []
    for result, spec in zip(results, outputs):
        memory = storage_ptr(result)
        cut = unpad if memory in used else unpadded_views
        parts.append(cut(result, spec, lengths))
        used.add(memory)
    return parts


def check_outputs(results: Sequence[torch.Tensor], outputs: Sequence[TensorSpec], bucket: Bucket) -> None:
    """Compare the outputs of a program with their declaration.

    Raises `InvariantError`: another number of tensors, another shape or dtype.
    """
    if len(results) != len(outputs):
        raise InvariantError(f"{_program(bucket)} declares {len(outputs)} outputs and returned {len(results)}")
    for result, spec in zip(results, outputs):
        sizes = spec.sizes(*bucket)
        if result.shape != sizes or result.dtype is not torch_dtype(spec):
            raise InvariantError(
                f"{_program(bucket)} declares output {spec.name!r} as {spec.dtype} {list(sizes)} and returned "
                f"{str(result.dtype).removeprefix('torch.')} {list(result.shape)}"
            )


def _program(bucket: Bucket) -> str:
    return f"the program of bucket {bucket.batch} x {bucket.length}"
