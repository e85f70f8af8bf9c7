"""Reference outputs: the user's own model in eager mode, given one request alone and unpadded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from ...bucketing.shapes import TensorSpec, size_at
from ...config.schema import NeuronLstmBlock
from ...lowering.eager_call import call_eagerly
from ...lowering.errors import explain_torch_error, raising_line, source_suffix
from ...lowering.exporter.export import bind_arguments
from ..errors import PackagingError


@dataclass(frozen=True)
class ReferenceRequest:
    """One request of `length` timesteps (1 for a model without time), without batch dimension."""

    length: int
    inputs: tuple[torch.Tensor, ...]


ReferenceOutputs = tuple[torch.Tensor, ...]
"""Outputs of one request in the order of the program's, without batch dimension or padding."""

Reference = Callable[[ReferenceRequest], ReferenceOutputs]


def make_reference(model: torch.nn.Module, config: NeuronLstmBlock, outputs: Sequence[TensorSpec]) -> Reference:
    """Make a function of one request from the user's model.

    Raises (when called):
        PackagingError: the model fails on the request.
    """

    def answer(request: ReferenceRequest) -> ReferenceOutputs:
        copies = [tensor.clone() for tensor in request.inputs]  # the model may write into them
        batch = [as_batch(tensor, spec) for tensor, spec in zip(copies, config.input_specs, strict=True)]
        try:
            answered = call_eagerly(model, bind_arguments(config, batch, torch.tensor([request.length])))
        except Exception as error:
            raise PackagingError(_failed(model, request, error, config.input_specs)) from error
        leaves = [leaf for leaf in pytree.tree_leaves(answered) if isinstance(leaf, torch.Tensor)]
        for index, (leaf, spec) in enumerate(zip(leaves, outputs, strict=True)):
            if spec.batch_dim is not None and leaf.dim() == len(spec.shape) - 1:  # the model flattens it into time
                leaves[index] = as_batch(leaf, spec)
        for leaf, spec in zip(leaves, outputs, strict=True):
            _check_size(leaf, spec, request.length)
        return tuple(select_row(leaf, spec, request.length) for leaf, spec in zip(leaves, outputs, strict=True))

    return answer


def _check_size(tensor: torch.Tensor, spec: TensorSpec, length: int) -> None:
    """Refuse an output with fewer timesteps than the request."""
    expected = list(spec.sizes(1, length))
    if len(expected) == tensor.dim() and any(own < size for own, size in zip(tensor.shape, expected, strict=True)):
        raise PackagingError(
            f"the model in eager mode returns {spec.name} as {list(tensor.shape)} for a request of {length} timesteps, "
            f"where {expected} was traced: it takes the length from the values of its inputs, as in (ids != 0).sum(1). "
            "Give `range` to that input under `inputs`, so that no padding is drawn for a request: for ids [1, 4999], "
            "for a mask [1, 1]"
        )


def _failed(model: torch.nn.Module, request: ReferenceRequest, error: Exception, specs: Sequence[TensorSpec]) -> str:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in request.inputs)
    own = str(error).rstrip(".")
    message = (
        f"{type(model).__name__} fails in eager mode on one request of {request.length} timesteps (inputs without "
        f"batch dimension: {shapes}){source_suffix(raising_line(error))}: "
        f"{explain_torch_error(own) or f'{type(error).__name__}: {own}'}"
    )
    drawn = [  # among which may be numbers that the model does not take
        f"{spec.name} (from {int(tensor.min())} to {int(tensor.max())})"
        for spec, tensor in zip(specs, request.inputs, strict=True)
        if spec.value_range is None and tensor.numel() and spec.dtype.startswith(("int", "uint"))
    ]
    if drawn:
        message += (
            f". Without a `range`, whole numbers are drawn, here for {', '.join(drawn)}: if the model takes certain "
            "ones only, declare them, as in `range: [1, 24]`"
        )
    return message


def as_batch(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return one request's tensor as a batch of one row.

    >>> as_batch(torch.zeros(5, 12), TensorSpec("frames", "float32", ("time", "batch", 12))).shape
    torch.Size([5, 1, 12])
    """
    return tensor if spec.batch_dim is None else tensor.unsqueeze(spec.batch_dim)


def select_row(tensor: torch.Tensor, spec: TensorSpec, length: int, row: int = 0) -> torch.Tensor:
    """Select one row of a batch of outputs, cut to `length` timesteps: the inverse of padding.

    >>> select_row(torch.zeros(4, 16, 9), TensorSpec("logits", "float32", ("batch", "time", 9)), length=5, row=3).shape
    torch.Size([5, 9])
    """
    for dim, size in enumerate(spec.shape):
        if isinstance(size, str) and size != "batch":  # twice in an attention map
            tensor = tensor.narrow(dim, 0, size_at(size, length))
    return tensor if spec.batch_dim is None else tensor.select(spec.batch_dim, row)
