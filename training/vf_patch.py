"""Patch of torch's kernels for packed data, while a forward() runs and in its thread only.

`pack_padded_sequence`, `pad_packed_sequence` and the layers, however the user imported them, call torch's kernels
through the name `_VF` of the two files that define them. That name is replaced while any lowered model runs; a thread
that runs none gets torch's own functions from the replacement.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import _VF
from torch.nn.modules import rnn as rnn_modules
from torch.nn.utils import rnn as rnn_utils

from . import packing, recurrence

_FILES: tuple[Any, ...] = (rnn_modules, rnn_utils)


class _Depth(threading.local):
    """Number of forward() calls of lowered models on this thread's stack."""

    value = 0


_depth = _Depth()


class _PatchedVF:
    """`torch._VF` with other functions for packed data."""

    def __init__(self, ours: dict[str, Callable[..., Any]]) -> None:
        for name, function in ours.items():
            setattr(self, name, _in_lowered_models(function, getattr(_VF, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(_VF, name)


def _in_lowered_models(ours: Callable[..., Any], torchs: Callable[..., Any]) -> Any:
    def call(*args: Any) -> Any:
        return ours(*args) if _depth.value and not _is_transformed() else torchs(*args)

    # torch.compile does not trace torch's kernels for packed data, and must not trace ours.
    return torch.compiler.disable(call)


def _is_transformed() -> bool:
    """Whether operators are being traced, or transformed by torch.func. Both support torch's own kernels only."""
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch.compiler.is_exporting()
    )


@functools.cache
def _table() -> _PatchedVF:
    """Built on first use, because `torch.compiler.disable` loads the compiler."""
    return _PatchedVF(
        {
            "_pack_padded_sequence": packing.pack,
            "_pad_packed_sequence": packing.unpack,
            "lstm": recurrence.lstm,
            "gru": recurrence.gru,
            "rnn_tanh": recurrence.rnn_tanh,
            "rnn_relu": recurrence.rnn_relu,
        }
    )


_lock = threading.Lock()
_running: list[object] = []
"""The calls in which `_VF` is needed, of all threads."""


@contextlib.contextmanager
def patch_vf() -> Iterator[None]:
    """Use our functions for packed data inside this context, in this thread."""
    with _lock:
        _running.append(None)
        _set_vf(_table())
    _depth.value += 1
    try:
        yield
    finally:
        _depth.value -= 1
        with _lock:
            _running.pop()
            if not _running:
                _set_vf(_VF)


def _set_vf(functions: Any) -> None:
    for file in _FILES:
        file._VF = functions
