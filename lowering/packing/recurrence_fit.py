"""Checks of what a recurrent layer gets, against its weights and the declared dimensions.

torch compares the features of a padded tensor with a layer's `input_size`, but not those of packed data in an LSTM,
beyond whose rows it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ..errors import InputsDoNotFit, calling_line, source_suffix
from ..torch_messages import NO_FEATURES, OTHER_FEATURES

_LAYERS = {"lstm": "nn.LSTM", "gru": "nn.GRU", "rnn_tanh": "nn.RNN", "rnn_relu": "nn.RNN"}


def check_recurrence(cell: str, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    """Compare x[B, T, F] with the flat weights of a layer.

    Raises:
        InputsDoNotFit: the features or the precision differ; names the line.
    """
    size: Any = x.shape[-1]
    expected = int(weights[0].shape[1])
    at = source_suffix(calling_line())
    if isinstance(size, int) and size != expected:
        raise InputsDoNotFit(_other_features(_LAYERS[cell], expected, size, at))
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


def _other_features(layer: str, expected: int, size: int, at: str) -> str:
    return OTHER_FEATURES.format("", expected, size, layer=layer, at=at)


def check_axes(cell: str, *, swapped: bool) -> None:
    """Refuse a layer whose batch is the dimension that is declared as time, and whose time is the batch.

    Raises:
        InputsDoNotFit: names the line.
    """
    if swapped:
        raise InputsDoNotFit(
            f"{_LAYERS[cell]} takes the batch as time and time as the batch{source_suffix(calling_line())}: its "
            "batch_first is not that of `shape` under `inputs`. Write [batch, time, ...] there for batch_first=True "
            "and [time, batch, ...] for batch_first=False, or change the layer's batch_first"
        )


@contextmanager
def checked_packed_features(model: torch.nn.Module) -> Iterator[None]:
    """In this context, compare the features of packed data with an LSTM's `input_size` at each call.

    Raises:
        InputsDoNotFit: (when called) they differ.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.LSTM)]
    handles = [layer.register_forward_pre_hook(_check_packed) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_packed(layer: Any, arguments: tuple[Any, ...]) -> None:
    given = arguments[0] if arguments else None
    if isinstance(given, PackedSequence) and given.data.shape[-1] != layer.input_size:
        at = source_suffix(calling_line())
        raise InputsDoNotFit(_other_features("nn.LSTM", layer.input_size, given.data.shape[-1], at))
