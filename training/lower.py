"""`lower`: a view of a model whose forward() runs packed sequences faster in training."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import _VF, nn
from torch.nn.modules import rnn as rnn_modules
from torch.nn.utils import rnn as rnn_utils

from . import packing, recurrence

ModelT = TypeVar("ModelT", bound=nn.Module)

_ORIGINAL = "_neuron_lstm_lowered_from"


def lower(model: ModelT) -> ModelT:
    """Return the same model with a forward() that packs, runs packed recurrences and unpacks faster.

    The gain is largest in the backward pass. The argument and the result share everything except forward(): parameters,
    buffers, submodules, hooks, training mode and any other attribute. So optimizers, checkpoints, `state_dict` keys,
    `model.to(...)`, copies and `torch.compile(lower(model))` work as before. Outputs and gradients are those of the
    model up to rounding. Packed data supports everything that torch's supports.

    >>> from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
    >>> class Tagger(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.lstm = nn.LSTM(4, 3, batch_first=True)
    ...     def forward(self, x, lengths):
    ...         packed = pack_padded_sequence(x, lengths, batch_first=True)
    ...         return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]
    >>> tagger = Tagger()
    >>> faster = lower(tagger)
    >>> isinstance(faster, Tagger), faster.lstm is tagger.lstm
    (True, True)
    >>> faster(torch.ones(2, 5, 4), torch.tensor([5, 3])).shape
    torch.Size([2, 5, 3])

    Raises `TypeError`: `model` is no `nn.Module`, or its forward() is compiled, scripted, or set on the instance.
    """
    _refuse_unsuitable(model)
    cls: Any = type(model)
    if hasattr(cls, _ORIGINAL):
        return model
    lowered: ModelT = _with_state_of(model, _lowered_class(cls))
    return lowered


def _refuse_unsuitable(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"lower() takes an nn.Module, not {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("lower() cannot change a scripted model: pass the nn.Module that was scripted")
    compiled = vars(model).get("_compiled_call_impl") is not None and not hasattr(type(model), _ORIGINAL)
    if "forward" in vars(model) or compiled:
        raise TypeError(
            f"forward() of this {type(model).__name__} is set on the instance or compiled, as torch.compile(model) "
            "does. Lower first, then compile: torch.compile(lower(model)). Your forward() must be defined in the class"
        )


def _with_state_of(model: nn.Module, cls: type[nn.Module]) -> Any:
    """A second view of a module: another class, the same attributes."""
    view = cls.__new__(cls)
    view.__dict__ = model.__dict__
    return view


@functools.cache
def _lowered_class(cls: Any) -> Any:
    """The class with a forward() that runs inside `patch_vf`; its name and signature are unchanged."""

    @functools.wraps(cls.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with patch_vf():
            return cls.forward(self, *args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        """Make copies and pickles refer to a class that can be imported."""
        return lower, (_with_state_of(self, cls),)

    def shallow_copy(self: nn.Module) -> Any:
        """Make a copy with attributes of its own, as of the model itself."""
        return lower(copy.copy(_with_state_of(self, cls)))

    members = {
        # The compiler skips this frame and compiles the user's own.
        "forward": torch.compiler.disable(forward, recursive=False),
        "__reduce_ex__": reduce,
        "__copy__": shallow_copy,
        **{name: getattr(cls, name) for name in ("__doc__", "__module__", "__qualname__")},
        _ORIGINAL: cls,
    }
    return type(cls)(cls.__name__, (cls,), members)


_FILES: tuple[Any, ...] = (rnn_modules, rnn_utils)


class _Depth(threading.local):
    """Number of forward() calls of lowered models on this thread's stack."""

    value = 0


_depth = _Depth()


class _PatchedVF:
    """`torch._VF` with other functions for packed data."""

    def __init__(self, **ours: Callable[..., Any]) -> None:
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
        _pack_padded_sequence=packing.pack,
        _pad_packed_sequence=packing.unpack,
        lstm=recurrence.lstm,
        gru=recurrence.gru,
        rnn_tanh=recurrence.rnn_tanh,
        rnn_relu=recurrence.rnn_relu,
    )


_lock = threading.Lock()
_running: list[object] = []
"""The calls in which `_VF` is needed, of all threads."""


@contextlib.contextmanager
def patch_vf() -> Iterator[None]:
    """Use our functions for packed data inside this context, in this thread.

    `pack_padded_sequence`, `pad_packed_sequence` and the layers call torch's kernels through the name `_VF` of the two
    files that define them. That name is replaced while any lowered model runs; other threads get torch's own functions.
    """
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
