"""PackedSequence tracing mode: replaces PackedSequence code by abstract masked operators.

While the user's forward() runs, a TorchFunctionMode intercepts the functions below `pack_padded_sequence`, `nn.LSTM`
and `pad_packed_sequence`, however the user imported them. Packed data is represented by a placeholder tensor that
refers to the padded one. Only a recurrence or `pad_packed_sequence` may take it; any other use is refused with the
operator's name, as the Neuron compiler does.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules import rnn as rnn_modules
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..errors import calling_line
from ..exporter.model_attributes import replaced
from .packed_placeholder import PACKED_FACTS, TORCH_RNN_FILES, packed_use_error, placeholder_of
from .packed_rules import PACKED_RULES
from .padded_batch import TracedLengths, same_size


@contextlib.contextmanager
def packed_sequence_mode(rows: int | None) -> Iterator[None]:
    """Activate the tracing mode and the patches that it needs while the user's forward() is traced.

    `rows` is the number of lengths, if there are any.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchecked_packed_states())
        # The exporter's tensor classes run tolist() in Python, where the mode does not see it.
        for tensor_class in (FunctionalTensor, FakeTensor):
            stack.enter_context(replaced(tensor_class, "tolist", _tolist(rows, tensor_class.tolist)))
        stack.enter_context(PackedSequenceMode(rows))
        yield


def unchecked_packed_states() -> contextlib.AbstractContextManager[None]:
    """Leave out a check of nn.GRU and nn.RNN, whose int(batch_sizes[0]) would fix the number of rows."""
    original = rnn_modules.RNNBase.check_forward_args
    return replaced(rnn_modules.RNNBase, "check_forward_args", _check_forward_args(original))


def _check_forward_args(original: Any) -> Any:
    def check_forward_args(self: Any, x: Any, hidden: Any, batch_sizes: Any) -> None:
        if batch_sizes is None:
            original(self, x, hidden, batch_sizes)
        else:
            self.check_input(x, batch_sizes)

    return check_forward_args


def _tolist(rows: Any, original: Any) -> Any:
    def tolist(self: Any) -> Any:
        return TracedLengths(self) if self.dim() == 1 and same_size(self.shape[0], rows) else original(self)

    return tolist


class PackedSequenceMode(TorchFunctionMode):
    """Mode that intercepts every torch function of the user's forward()."""

    def __init__(self, rows: int | None) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1)
        rule = PACKED_RULES.get(name)
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
