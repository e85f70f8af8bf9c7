"""PackedSequence tracing mode: replaces PackedSequence code by abstract masked operators.

While the user's forward() runs, a TorchFunctionMode intercepts the functions below `pack_padded_sequence`, `nn.LSTM`
and `pad_packed_sequence`, however the user imported them. Packed data is represented by a placeholder tensor that
refers to the padded one. Only a recurrence or `pad_packed_sequence` may take it; any other use is refused with the
operator's name, as the Neuron compiler does.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..lowering.errors import LoweringError, calling_line, source_suffix
from ..lowering.exporter.model_attributes import replaced
from ..lowering.packing.packed_placeholder import (
    PACKED_FACTS,
    TORCH_RNN_FILES,
    TracedLengths,
    packed_use_error,
    placeholder_of,
    same_size,
)
from ..lowering.packing.packed_rules import PACKED_RULES, viewed
from ..lowering.packing.recurrence_fit import unchecked_packed_states


@contextlib.contextmanager
def packed_sequence_mode(rows: int | None) -> Iterator[PackedSequenceMode]:
    """Activate the tracing mode and the patches that it needs while the user's forward() is traced.

    `rows` is the number of lengths, if there are any.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchecked_packed_states())
        # The exporter's tensor classes run tolist() in Python, where the mode does not see it.
        for tensor_class in (FunctionalTensor, FakeTensor):
            stack.enter_context(replaced(tensor_class, "tolist", _tolist(rows, tensor_class.tolist)))
        yield stack.enter_context(PackedSequenceMode(rows))


def _tolist(rows: Any, original: Any) -> Any:
    def tolist(self: Any) -> Any:
        return TracedLengths(self) if self.dim() == 1 and same_size(self.shape[0], rows) else original(self)

    return tolist


def _as_tensor(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    return args[0].tensor if args and isinstance(args[0], TracedLengths) else NotImplemented


def _iterate(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if caller is torch.Tensor.__iter__.__code__ and tensor.dim() == 1 and same_size(tensor.shape[0], rows):
        return iter(TracedLengths(tensor))
    return NotImplemented


def _len(rows: Any, caller: Any, args: Any, kwargs: Any) -> Any:
    # Python converts the result of len() to an int, which fixes the size: the exporter refuses it without a line.
    size = args[0].shape[0] if args[0].dim() else None
    if placeholder_of(args[0]) is not None or not isinstance(size, torch.SymInt):
        return NotImplemented
    line = calling_line()
    raise LoweringError(
        f"the model takes len() of a tensor whose first dimension varies{source_suffix(line)}: that fixes the "
        "dimension. Take its size(0) instead."
    )


_RULES: dict[str, Callable[..., Any]] = {
    **PACKED_RULES,
    "cuda": lambda rows, caller, args, kwargs: args[0],
    "__len__": _len,
    "view": lambda rows, caller, args, kwargs: (
        NotImplemented if placeholder_of(args[0]) is not None else viewed(*args, **kwargs)
    ),
    "as_tensor": _as_tensor,
    "tensor": _as_tensor,
    "unbind": _iterate,
}


class PackedSequenceMode(TorchFunctionMode):
    """Mode that intercepts every torch function of the user's forward()."""

    def __init__(self, rows: int | None) -> None:
        super().__init__()
        self.rows = rows
        self.padded_timesteps: int | None = None
        """Timesteps of a sequence that was padded without `total_length`, to those of the longest one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1)
        if name == "_pad_packed_sequence" and (packed := placeholder_of(args[0])) is not None and args[4] <= 0:
            self.padded_timesteps = packed.padded.shape[1]
        rule = _RULES.get(name)
        if rule is not None:
            result = rule(self.rows, caller.f_code, args, kwargs)
            if result is not NotImplemented:
                return result
        for value in pytree.tree_leaves((args, kwargs)):
            packed = placeholder_of(value)
            if packed is not None and caller.f_code.co_filename not in TORCH_RNN_FILES:
                attribute = func.__self__.__name__ if name == "__get__" else name
                if attribute not in PACKED_FACTS:
                    raise packed_use_error(packed, f"aten::{attribute.strip('_')}", calling_line())
        return func(*args, **kwargs)
