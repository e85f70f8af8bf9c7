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
from torch._C import _functorch, _is_any_autocast_enabled
from torch.autograd import forward_ad

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
        self._addresses = list(map(torch.Tensor.data_ptr, self._weights))
        self._form = (layer.bias, layer.num_layers, layer.bidirectional)
        cell, directions = layer.mode.lower(), 2 if layer.bidirectional else 1
        states, outputs = layer.num_layers * directions, layer.proj_size or layer.hidden_size
        self._sizes = [(states, outputs), (states, layer.hidden_size)][: 2 if cell == "lstm" else 1]
        packed = [weight.detach() for weight in self._weights]
        time_major = not layer.batch_first
        self._compute: Callable[..., Any] = recurrence(
            pool, cell, packed, layer.num_layers, directions, time_major=time_major
        )
        setattr(self, cell, partial(self._call, getattr(_VF, cell)))

    def __getattr__(self, name: str) -> Any:
        return getattr(_VF, name)

    def _call(self, kernel: Callable[..., Any], *args: Any) -> Any:
        of_rows = self._padded if isinstance(args[3], bool) else self._packed
        computed = None if _transforms() else of_rows(*args)
        return kernel(*args) if computed is None else computed

    def _padded(self, x: torch.Tensor, states: Any, weights: Sequence[torch.Tensor], *options: Any) -> Computed:
        *form, batch_first = options
        computed = self._run(x if batch_first else x.transpose(0, 1), states, weights, *form)
        return computed if computed is None or batch_first else (computed[0].transpose(0, 1), *computed[1:])

    def _packed(
        self, data: torch.Tensor, sizes: torch.Tensor, states: Any, weights: Sequence[torch.Tensor], *form: Any
    ) -> Computed:
        if data.dim() != 2 or sizes.dtype is not torch.int64 or sizes.tolist() != [1] * len(data):
            return None  # of several rows
        computed = self._run(data[None], states, weights, *form)
        return computed and (computed[0][0], *computed[1:])

    def _run(self, rows: torch.Tensor, states: Any, weights: Sequence[torch.Tensor], *form: Any) -> Computed:
        """Compute the layer; None: torch's kernel would refuse the arguments, or compute something else of them."""
        bias, layers, _, training, bidirectional = form
        held = (states,) if isinstance(states, torch.Tensor) else states
        takes = (
            not training
            and (bias, layers, bidirectional) == self._form
            and isinstance(states, torch.Tensor) is (len(self._sizes) == 1)
            and rows.dim() == 3
            and rows.numel() > 0
            and [state.shape for state in held] == [(count, len(rows), size) for count, size in self._sizes]
            and all(map(_is_plain, (rows, *held)))
            and len(weights) == len(self._weights)
            and all(map(is_, weights, self._weights))
            and list(map(version_of, weights)) == self._versions
            and list(map(torch.Tensor.data_ptr, weights)) == self._addresses
        )
        return self._compute(rows, None, *held) if takes else None


def _transforms() -> bool:
    """Whether torch computes gradients, in another dtype, or for many tensors at once, as in vmap."""
    has_tangents = forward_ad._current_level >= 0  # noqa: SLF001 - torch has no public name
    is_traced = _functorch.peek_interpreter_stack() is not None
    return torch.is_grad_enabled() or _is_any_autocast_enabled() or is_traced or has_tangents


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the library can read the elements of a tensor at its address."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.dtype is torch.float32
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_neg()
    )
