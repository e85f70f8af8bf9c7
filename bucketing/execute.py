"""Following a plan: requests into buckets, through the programs, and back in the order they came."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .errors import InvariantError
from .padding import lengths_tensor, pad, storage_ptr, torch_dtype, unpad, unpadded_views
from .plan import Plan, ProgramCall
from .shapes import Bucket, TensorSpec

Tensors = tuple[torch.Tensor, ...]
RunBucket = Callable[[Bucket, list[torch.Tensor]], Sequence[torch.Tensor]]
"""Runs a bucket's program on its padded inputs, lengths[B] last where the programs take them."""
Pad = Callable[[Sequence[torch.Tensor], TensorSpec, Bucket], torch.Tensor]
"""`padding.pad`, or what puts something else into the padding."""


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
    """The answers of all requests, in their order: each has one tensor an output, of the output's `item_shape`.

    A request has one tensor an input, of the input's `item_shape`. Answers are views of what `run` returned, which is
    ours by then; no two outputs share memory, nor does one with an input.

    Raises:
        ValueError: a request's tensor has not the shape or dtype of its input.
        BrokenInvariant: the plan leaves a request out, or a program's answers are not as declared.
    """
    answers: dict[int, Tensors] = {}
    for step in plan.runs:
        padded = _padded_inputs(step, requests, lengths, inputs, takes_lengths, pad)
        results = run(step.bucket, padded)
        check_outputs(results, outputs, step.bucket)
        own_lengths = [lengths[row] for row in step.rows]
        parts = _parts(results, outputs, own_lengths, padded)
        answers.update(zip(step.rows, zip(*parts, strict=True), strict=True))
    if sorted(answers) != list(range(len(requests))):
        raise InvariantError(f"{len(requests)} requests were to be answered, the plan answers {sorted(answers)}")
    return [answers[row] for row in range(len(requests))]


def _parts(
    results: Sequence[torch.Tensor],
    outputs: Sequence[TensorSpec],
    lengths: Sequence[int],
    given: Sequence[torch.Tensor],
) -> list[list[torch.Tensor]]:
    """Each output's answers. A program may return a tensor twice, or what it was given: then they are copies."""
    taken = {storage_ptr(tensor) for tensor in given}
    parts = []
    for result, spec in zip(results, outputs, strict=True):
        cut = unpad if storage_ptr(result) in taken else unpadded_views
        parts.append(cut(result, spec, lengths))
        taken.add(storage_ptr(result))
    return parts


def _padded_inputs(
    step: ProgramCall,
    requests: Sequence[Sequence[torch.Tensor]],
    lengths: Sequence[int],
    inputs: Sequence[TensorSpec],
    takes_lengths: bool,
    pad: Pad,
) -> list[torch.Tensor]:
    padded = [
        pad([requests[row][position] for row in step.rows], spec, step.bucket) for position, spec in enumerate(inputs)
    ]
    if takes_lengths:
        padded.append(lengths_tensor([lengths[row] for row in step.rows], step.bucket))
    return padded


def check_outputs(results: Sequence[torch.Tensor], outputs: Sequence[TensorSpec], bucket: Bucket) -> None:
    """Hold what a program gave against what was declared.

    Raises:
        BrokenInvariant: another number of tensors, another shape or dtype.
    """
    if len(results) != len(outputs):
        raise InvariantError(f"{_program(bucket)} declares {len(outputs)} outputs and returned {len(results)}")
    for result, spec in zip(results, outputs, strict=True):
        sizes = spec.sizes(*bucket)
        if result.shape != sizes or result.dtype is not torch_dtype(spec):
            raise InvariantError(
                f"{_program(bucket)} declares output {spec.name!r} as {spec.dtype} {list(sizes)} and returned "
                f"{str(result.dtype).removeprefix('torch.')} {list(result.shape)}"
            )


def _program(bucket: Bucket) -> str:
    return f"the program of bucket {bucket.batch} x {bucket.length}"
