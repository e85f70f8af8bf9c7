"""Explanation of a refusal by the failure of the model in eager mode."""

from __future__ import annotations

import torch

from ..config.schema import ServingConfig
from .eager_call import call_eagerly, copy_of
from .errors import LoweringError, raising_line, source_suffix
from .exporter.export import bind_arguments, example_tensor
from .torch_messages import in_our_words


def eager_failure(model: torch.nn.Module, config: ServingConfig) -> LoweringError | None:
    """Return the error of a model that fails in eager mode at each bucket length; else None."""
    tried, failure = copy_of(model), None
    for length in config.grid.lengths:
        error = _failure(tried, config, length, torch.tensor([length]))
        if error is None:
            return None
        failure = failure or _described(error, model, config, length)
    return failure


def takes_shares(model: torch.nn.Module, config: ServingConfig) -> LoweringError | None:
    """Return the error about lengths that the model takes as shares of the longest one, 0 to 1; else None."""
    length = config.grid.lengths[-1]
    if config.lengths is None or config.lengths.type != "tensor" or length == 1:
        return None
    tried, names = copy_of(model), ", ".join(f"{name}: null" for name in config.lengths.names)
    if (
        _failure(tried, config, length, torch.tensor([length])) is None
        or _failure(tried, config, length, torch.ones(1)) is not None
    ):
        return None
    return LoweringError(
        f"{type(model).__name__} takes lengths as shares of the longest one, from 0 to 1, not as numbers of timesteps: "
        f"it fails for a length of {length} and takes 1.0. Leave `lengths` out: a request is traced alone, without "
        f"padding. If the argument is required, write `model: {{forward: {{{names}}}}}`"
    )


def needs_two_rows(model: torch.nn.Module, config: ServingConfig) -> LoweringError | None:
    """Return the error of a model that takes a batch of 2 requests, and fails on one request; else None."""
    length = config.grid.lengths[-1]
    error = _failure(copy_of(model), config, length, torch.tensor([length]))
    if error is None or not _takes_two(model, config, length):
        return None
    return _described(error, model, config, length)


def _takes_two(model: torch.nn.Module, config: ServingConfig, timesteps: int) -> bool:
    return _failure(copy_of(model), config, timesteps, torch.tensor([timesteps] * 2)) is None


def _failure(model: torch.nn.Module, config: ServingConfig, timesteps: int, lengths: torch.Tensor) -> Exception | None:
    """Return the error of the model on a batch of requests of some timesteps; None if it takes it."""
    tensors = [example_tensor(spec, len(lengths), timesteps) for spec in config.input_specs]
    try:
        call_eagerly(model, bind_arguments(config, tensors, lengths))
    except Exception as error:  # noqa: BLE001 - the user's code
        return error
    return None


def _described(error: Exception, model: torch.nn.Module, config: ServingConfig, length: int) -> LoweringError:
    own = str(error).rstrip(".")
    instead = (
        "it takes a batch of 2 requests. A squeeze() without a dimension, for one, removes the batch dimension where "
        "it is 1: name the dimension, as in x.squeeze(1)"
        if _takes_two(model, config, length)
        else "check these under `inputs`, dtype and shape, if they are not what it takes"
    )
    given = ", ".join(
        f"{spec.name} as {spec.dtype} {list(spec.sizes(1, length))}".replace("'", "") for spec in config.input_specs
    )
    return LoweringError(
        f"{type(model).__name__} fails in eager mode on one request of {length} timesteps, a batch of 1"
        f"{source_suffix(raising_line(error))}: {in_our_words(own) or f'{type(error).__name__}: {own}'}. It was called "
        f"with {given}: {instead}"
    )
