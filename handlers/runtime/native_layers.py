"""Recurrent layers of a model that answers by its own code, computed by the native engine's library.

The layers stay what they are: `nn.LSTM` and others check their arguments, and call torch's kernel by a name of their
file. Their forward() is run with another value of this name. A call in a form that the library does not take, or with
weights that were changed, runs torch's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import is_
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Optional

import torch
from torch import _VF, nn

from ...backends.native.layers import recurrence
from ...backends.native.library import ThreadPool, open_pool
from .state_places import version_of

_LAYERS = (nn.LSTM, nn.GRU, nn.RNN)
Computed = Optional[tuple[torch.Tensor, ...]]


def native_layers(model: nn.Module) -> Iterator[tuple[str, nn.RNNBase]]:
    """Yield the layers that the library can compute, with their names."""
    for name, layer in model.named_modules():
        if (
            isinstance(layer, nn.RNNBase)
            and type(layer) in _LAYERS
            and "forward" not in vars(layer)
            and all(weight.dtype is torch.float32 and weight.device.type == "cpu" for weight in layer.parameters())
        ):
            yield name, layer


def use_native_layers(model: nn.Module, libraries: Path, threads: int) -> None:
    """Let the library in a folder compute the recurrent layers of a model.

    Raises `LoadError`: this host cannot run the library.
    """
    pool = open_pool(libraries, threads)
    for _, layer in native_layers(model):
        original: Any = type(layer).forward
        names = {**original.__globals__, "_VF": _Kernels(layer, pool)}
        forward = FunctionType(original.__code__, names, "forward", original.__defaults__, original.__closure__)
        layer.forward = MethodType(forward, layer)  # a copy of the layer has it as its own method


class _Kernels:
    """`torch._VF` with other kernels for the weights of one layer."""

    def __init__(self, layer: nn.RNNBase, pool: ThreadPool) -> None:
        self._weights: list[Any] = list(layer._flat_weights)  # noqa: SLF001 - torch has no public name
        self._versions = list(map(version_of, self._weights))
        cell, directions = layer.mode.lower(), 2 if layer.bidirectional else 1
        packed = [weight.detach() for weight in self._weights]
        time_major = not layer.batch_first
        self._compute = recurrence(pool, cell, packed, layer.num_layers, directions, time_major=time_major)
        setattr(self, cell, partial(self._call, getattr(_VF, cell)))

    def __getattr__(self, name: str) -> Any:
        return getattr(_VF, name)

    def _call(self, kernel: Callable[..., Any], *args: Any) -> Any:
        of_rows = self._padded if isinstance(args[3], bool) else self._packed
        has_other_numbers = torch.is_grad_enabled() or torch._C._is_any_autocast_enabled()  # noqa: SLF001 - of any torch
        computed = None if has_other_numbers else of_rows(*args)
        return kernel(*args) if computed is None else computed

    def _padded(self, x: torch.Tensor, states: Any, weights: Sequence[torch.Tensor], *options: Any) -> Computed:
        *_, training, _, batch_first = options
        rows = x if batch_first else x.transpose(0, 1)
        if not self._takes(rows, weights, training=training):
            return None
        y, *final = self._run(rows, states)
        return (y if batch_first else y.transpose(0, 1), *final)

    def _packed(
        self, data: torch.Tensor, sizes: torch.Tensor, states: Any, weights: Sequence[torch.Tensor], *options: Any
    ) -> Computed:
        *_, training, _ = options
        if data.dim() != 2 or len(sizes) != len(data) or not self._takes(data[None], weights, training=training):
            return None  # of several rows
        y, *final = self._run(data[None], states)
        return (y[0], *final)

    def _takes(self, rows: torch.Tensor, weights: Sequence[torch.Tensor], *, training: bool) -> bool:
        return (
            not training
            and rows.dim() == 3
            and rows.numel() > 0
            and rows.dtype is torch.float32
            and len(weights) == len(self._weights)
            and all(map(is_, weights, self._weights))
            and list(map(version_of, weights)) == self._versions
        )

    def _run(self, rows: torch.Tensor, states: Any) -> Any:
        return self._compute(rows, None, *((states,) if isinstance(states, torch.Tensor) else states))
