"""Checks of what a recurrent layer gets, against its weights and the declared dimensions.

torch compares the features of a padded tensor with a layer's `input_size`, but not those of packed data in an LSTM,
beyond whose rows it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.nn.modules import rnn as rnn_modules
from torch.nn.utils.rnn import PackedSequence

from ..errors import NO_FEATURES, OTHER_FEATURES, InputsDoNotFit, calling_line, source_suffix
from ..exporter.model_attributes import replaced

_LAYERS = {"lstm": "nn.LSTM", "gru": "nn.GRU", "rnn_tanh": "nn.RNN", "rnn_relu": "nn.RNN"}


def check_recurrence(cell: str, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    """Compare x[B, T, F] with the flat weights of a layer.

    Raises `InputsDoNotFit`: the features or the precision differ; names the line.
    """
    size: Any = x.shape[-1]
    expected = int(weights[0].shape[1])
    at = source_suffix(calling_line())
    if isinstance(size, int) and size != expected:
        raise InputsDoNotFit(OTHER_FEATURES.format("", expected, size, layer=_LAYERS[cell], at=at))
    # an expression, as `y.reshape(steps, rows, -1)` has it, may be the same number for all timesteps
    if isinstance(size, torch.SymInt) and (size.node.expr.is_Symbol or size != expected):
        raise InputsDoNotFit(NO_FEATURES.format("", expected, layer=_LAYERS[cell], at=at))
    if x.dtype != weights[0].dtype and not torch._C._is_any_autocast_enabled():
        weight, given = (str(dtype).removeprefix("torch.") for dtype in (weights[0].dtype, x.dtype))
        raise InputsDoNotFit(
            f"{_LAYERS[cell]} has {weight} weights but gets {given} data{at}: save the weights of "
            f"{'model.float()' if given == 'float32' else f'model.to(torch.{given})'}, or declare the inputs with "
            f"`dtype: {weight}`"
        )


def swapped_axes(name: str) -> InputsDoNotFit:
    """Create the error about a call that takes the batch as time, and time as the batch; it names the line."""
    return InputsDoNotFit(
        f"{name} takes the batch as time and time as the batch{source_suffix(calling_line())}: its "
        "batch_first is not that of `shape` under `inputs`. Write [batch, time, ...] there for batch_first=True "
        "and [time, batch, ...] for batch_first=False, or change the layer's batch_first"
    )


def checked_axes(model: torch.nn.Module, batch: int, timesteps: int) -> AbstractContextManager[None]:
    """In this context, compare the sizes of a recurrent layer's input with those of the batch at each call.

    Raises `InputsDoNotFit`: (when called) the batch is in the place of time.
    """

    def check(layer: Any, arguments: tuple[Any, ...]) -> None:
        given = arguments[0] if arguments else None
        if isinstance(given, torch.Tensor) and given.dim() == 3:
            rows, steps = given.shape[:2] if layer.batch_first else given.shape[1::-1]
            if (rows, steps) == (timesteps, batch):
                raise swapped_axes(f"nn.{type(layer).__name__}")

    return _checked(model, torch.nn.RNNBase, check)


def checked_packed_features(model: torch.nn.Module) -> AbstractContextManager[None]:
    """In this context, compare the features of packed data with an LSTM's `input_size` at each call.

    Raises `InputsDoNotFit`: (when called) they differ.
    """
    return _checked(model, torch.nn.LSTM, _check_packed)


@contextmanager
def _checked(model: torch.nn.Module, kind: type[torch.nn.Module], check: Any) -> Iterator[None]:
    handles = [layer.register_forward_pre_hook(check) for layer in model.modules() if isinstance(layer, kind)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_packed(layer: Any, arguments: tuple[Any, ...]) -> None:
    given = arguments[0] if arguments else None
    if isinstance(given, PackedSequence) and given.data.shape[-1] != layer.input_size:
        at = source_suffix(calling_line())
        sizes = layer.input_size, given.data.shape[-1]
        raise InputsDoNotFit(OTHER_FEATURES.format("", *sizes, layer="nn.LSTM", at=at))


def unchecked_packed_states() -> AbstractContextManager[None]:
    """Leave out a check of nn.GRU and nn.RNN, whose int(batch_sizes[0]) would fix the number of rows."""
    original: Any = rnn_modules.RNNBase.check_forward_args

    def check_forward_args(layer: Any, x: Any, hidden: Any, batch_sizes: Any) -> None:
        if batch_sizes is None:
            original(layer, x, hidden, batch_sizes)
        else:
            layer.check_input(x, batch_sizes)

    return replaced(rnn_modules.RNNBase, "check_forward_args", check_forward_args)
