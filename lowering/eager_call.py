"""Calls of the user's model in eager mode, on the CPU."""

from __future__ import annotations

import bisect
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..config.schema import ServingConfig
from .errors import FailsEagerly, InputsDoNotFit, LoweringError, explain_torch_error, raising_line, source_suffix
from .exporter.arguments import plain_outputs
from .exporter.export import bind_arguments, example_tensor
from .packing.recurrence_fit import checked_axes


def call_eagerly(model: torch.nn.Module, arguments: Mapping[str, Any]) -> Any:
    """Call a model without gradients; a `.cuda()` in its code leaves the tensor on the CPU.

    The outputs are copies: a model may return a buffer into which its next call writes.
    """
    with torch.no_grad(), _StaysOnCpu():
        return pytree.tree_map_only(torch.Tensor, torch.clone, plain_outputs(model(**arguments)))


def copy_of(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy where one can be made: a call may change the model, which is still to be traced."""
    try:
        return copy.deepcopy(model)
    except Exception:  # noqa: BLE001 - whatever a module of the user's own raises when it is copied
        return model


class _StaysOnCpu(TorchFunctionMode):
    """Mode in which `tensor.cuda()` returns the tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is torch.Tensor.cuda else func(*args, **(kwargs or {}))


def eager_failure(model: torch.nn.Module, config: ServingConfig) -> LoweringError | None:
    """Return the error of a model that fails in eager mode at each bucket length; else None."""
    tried, failure = copy_of(model), None
    for length in config.grid.lengths:
        if (error := failure_of(tried, config, length, torch.tensor([length]))) is None:
            return None
        failure = failure or _described(error, model, config, length)
    return failure


def relative_lengths_error(model: torch.nn.Module, config: ServingConfig) -> LoweringError | None:
    """Return the error about lengths that the model takes as fractions of the longest one; else None."""
    length = config.grid.lengths[-1]
    if config.lengths is None or config.lengths.type != "tensor" or length == 1:
        return None
    tried, names = copy_of(model), ", ".join(f"{name}: null" for name in config.lengths.names)
    takes_numbers = any(failure_of(tried, config, own, torch.tensor([own])) is None for own in config.grid.lengths)
    if takes_numbers or failure_of(tried, config, length, torch.ones(1)) is not None:
        return None
    return LoweringError(
        f"{type(model).__name__} takes lengths as fractions of the longest one, from 0 to 1, not as numbers of "
        f"timesteps: it fails for a length of {length} and takes 1.0. Leave `lengths` out: a request is traced alone, "
        f"without padding. If the argument is required, write `model: {{forward: {{{names}}}}}`"
    )


def reject_swapped_axes(model: torch.nn.Module, config: ServingConfig) -> None:
    """Refuse a model with a recurrent layer that takes the batch as time. A request alone does not show it.

    Raises `InputsDoNotFit`: names the line.
    """
    tried, length = copy_of(model), config.grid.lengths[-1]
    rows = 2 if length != 2 else 3
    with checked_axes(tried, rows, length):
        failure = failure_of(tried, config, length, torch.tensor([length] * rows))
    if isinstance(failure, InputsDoNotFit):
        raise failure


def batch_places(model: torch.nn.Module, config: ServingConfig) -> list[int | None]:
    """Return the dimension of each output that is its batch, as two requests show; None where they do not."""
    tried, length = copy_of(model), config.grid.lengths[-1]
    try:
        one, two = (eager_answers(tried, config, length, torch.tensor([length] * rows)) for rows in (1, 2))
    except Exception:  # noqa: BLE001 - the user's code
        return []
    return [_grown(a.shape, b.shape) for a, b in zip(one, two, strict=False)]


def _grown(one: Sequence[int], two: Sequence[int]) -> int | None:
    """Return the only dimension that is 1 and then 2.

    >>> _grown((1, 1, 8), (1, 2, 8))
    1
    """
    grown = [dim for dim, sizes in enumerate(zip(one, two, strict=False)) if sizes == (1, 2)]
    return grown[0] if len(one) == len(two) and len(grown) == 1 else None


def eager_answers(
    model: torch.nn.Module, config: ServingConfig, timesteps: int, lengths: torch.Tensor
) -> list[torch.Tensor]:
    """Return the outputs of the model for a batch of example requests of some timesteps."""
    tensors = [example_tensor(spec, len(lengths), timesteps) for spec in config.input_specs]
    answer = call_eagerly(model, bind_arguments(config, tensors, lengths))
    return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def failure_of(
    model: torch.nn.Module, config: ServingConfig, timesteps: int, lengths: torch.Tensor
) -> Exception | None:
    """Return the error of the model on a batch of requests of some timesteps; None if it takes it."""
    try:
        eager_answers(model, config, timesteps, lengths)
    except Exception as error:  # noqa: BLE001 - the user's code
        return error
    return None


def _described(error: Exception, model: torch.nn.Module, config: ServingConfig, length: int) -> LoweringError:
    message = str(error).rstrip(".")
    instead = (
        "it takes a batch of 2 requests. A squeeze() without a dimension, for one, removes the batch dimension where "
        "it is 1: name the dimension, as in x.squeeze(1)"
        if failure_of(copy_of(model), config, length, torch.tensor([length] * 2)) is None
        else "check these under `inputs`, dtype and shape, if they are not what it takes"
    )
    layouts = [f"{spec.name} as {spec.dtype} {list(spec.sizes(1, length))}" for spec in config.input_specs]
    given = ", ".join(layouts).replace("'", "")
    reason = explain_torch_error(message) or f"{type(error).__name__}: {message}"
    return FailsEagerly(
        f"{type(model).__name__} fails in eager mode on one request of {length} timesteps, a batch of 1"
        f"{source_suffix(raising_line(error))}: {reason}. It was called "
        f"with {given}: {instead}"
    )


_ALL_TRIED = 64


def shortest_length(model: torch.nn.Module, config: ServingConfig) -> int:
    """Return the fewest timesteps of a request that `model` takes in eager mode; 1 if it takes none that is tried."""
    tried = copy_of(model)
    return _first_accepted(lambda n: failure_of(tried, config, n, torch.tensor([n])) is None, config.longest)


def _first_accepted(takes: Callable[[int], bool], longest: int) -> int:
    """Return the first length of 1 to `longest` for which `takes` is true, else 1.

    Each length to 64 is tried. Beyond, as for a model of samples of sound, `takes` is expected to be true for all
    lengths from the first one on.

    >>> _first_accepted(lambda length: length >= 5, longest=16)
    5
    >>> _first_accepted(lambda length: length >= 991, longest=16_000)
    991
    >>> _first_accepted(lambda length: False, longest=16)
    1
    >>> _first_accepted(lambda length: length % 320 == 0, longest=3_200)
    1
    """
    if first := next((length for length in range(1, min(longest, _ALL_TRIED) + 1) if takes(length)), None):
        return first
    refused, accepted = _ALL_TRIED, 2 * _ALL_TRIED
    while accepted < longest and not takes(accepted):
        refused, accepted = accepted, 2 * accepted
    accepted = min(accepted, longest)
    if accepted <= refused or not takes(accepted):
        return 1
    first = bisect.bisect_left(range(accepted), True, lo=refused + 1, key=takes)
    return first if takes(first + 1) else 1  # some models take multiples of a frame only
