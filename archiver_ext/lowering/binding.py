"""Which tensor goes to which argument of the user's forward()."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...bucketing.spec import Axis, TensorSpec
from ...config.schema import NeuronLstmBlock
from .refusal import LoweringRefused


def bind(config: NeuronLstmBlock, tensors: Sequence[torch.Tensor], lengths: torch.Tensor | None) -> dict[str, Any]:
    """The keyword arguments of one call of the user's forward().

    An input named `state.0` is the first element of a tuple argument `state`.
    """
    arguments: dict[str, Any] = {}
    for spec, tensor in zip(config.input_specs, tensors, strict=True):
        name, dot, position = spec.name.partition(".")
        if dot and position.isdigit():
            arguments[name] = (*arguments.get(name, ()), tensor)
        else:
            arguments[name] = tensor
    if config.lengths is not None and lengths is not None:
        arguments[config.lengths] = lengths
    return {**arguments, **config.model.forward}


def check_signature(model: torch.nn.Module, config: NeuronLstmBlock) -> None:
    """Refuse a configuration whose names are not those of the model's forward().

    Raises:
        LoweringRefused: an argument is unknown, missing, or tuple elements are out of order.
    """
    signature = inspect.signature(model.forward)
    names = bind(config, [torch.empty(0)] * len(config.input_specs), torch.empty(0))
    try:
        signature.bind(**names)
    except TypeError as error:
        raise LoweringRefused(
            f"{type(model).__name__}.forward{signature} cannot be called with the arguments the configuration names "
            f"({', '.join(names)}): {error}. List forward()'s tensor arguments under `inputs`, its true lengths under "
            "`lengths`, and constant arguments under `model.forward`."
        ) from error
    positions: dict[str, int] = {}
    for spec in config.input_specs:
        name, dot, position = spec.name.partition(".")
        if dot and position.isdigit():
            if int(position) != positions.get(name, 0):
                raise LoweringRefused(
                    f"inputs: {spec.name} is out of order; a tuple's elements are listed as {name}.0, {name}.1, ..."
                )
            positions[name] = int(position) + 1


def example(spec: TensorSpec, batch: int, length: int) -> torch.Tensor:
    """A valid tensor of one input: zeros, which every vocabulary holds."""
    return torch.zeros(spec.sizes(batch, length), dtype=getattr(torch, spec.dtype))


def dynamic_shape(spec: TensorSpec, dims: Mapping[Axis, Any]) -> dict[int, Any]:
    """The varying dimensions of one input as torch.export wants them."""
    return {index: dims[size] for index, size in enumerate(spec.shape) if isinstance(size, str)}
