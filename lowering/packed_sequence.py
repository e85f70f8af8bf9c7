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
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules import rnn as rnn_modules
from torch.nn.utils import rnn as rnn_utils
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..backends import recurrent_operators as _recurrent_operators  # noqa: F401  registers the operators
from .errors import LoweringError, calling_line, source_suffix
from .recurrence_fit import check_axes, check_recurrence

_TORCH_RNN_FILES = {rnn_modules.__file__, rnn_utils.__file__}
_FACTS = {"dtype", "device", "is_cuda", "layout", "requires_grad", "is_nested"}  # independent of the packed shape
PACKED_TAG = "_neuron_lstm_packed"
_IDENTITY = "_neuron_lstm_identity"
_LAST_SLICE = slice(-1, None)


@dataclass(frozen=True)
class PackedPlaceholder:
    """The padded tensor and lengths that a placeholder of packed data represents."""

    padded: torch.Tensor  # [B, T, ...]
    lengths: torch.Tensor  # [B]
    producer: str
    zero_on_padding: bool
    line: str | None
    """The line of the user's model that created it."""
    computed: bool = False
    """Whether a layer has computed it from packed data, timestep by timestep."""


class TracedLengths(list[int]):
    """Result of `lengths.tolist()` while tracing: pack_padded_sequence takes it, reading it is refused."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = tensor

    def _refuse(self, *_: object) -> Any:
        raise LoweringError(
            f"the model reads the values of `lengths` in Python{source_suffix(calling_line())}. Its graph must not "
            "depend on them: keep lengths a tensor, and pass it to pack_padded_sequence unchanged."
        )

    __iter__ = __getitem__ = __len__ = __bool__ = __contains__ = _refuse


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are the same number or the same symbol, regardless of its example value."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return isinstance(a, int) and isinstance(b, int) and a == b


def placeholder_of(value: object) -> PackedPlaceholder | None:
    """Return the packed data that a tensor represents, if it is a placeholder."""
    return getattr(value, PACKED_TAG, None) if isinstance(value, torch.Tensor) else None


def is_identity(value: object) -> bool:
    """Whether a tensor stands for the permutation by which packing sorts, which no masked program needs."""
    return hasattr(value, _IDENTITY)


def packed_use_error(packed: PackedPlaceholder, operator: str, line: str | None) -> LoweringError:
    """Create the error for unsupported use of packed data, in the words of the Neuron compiler."""
    if packed.producer == "aten::_pack_padded_sequence":
        head = (
            'A PackedSequence made by "aten::_pack_padded_sequence" can only be supported when it is consumed by a '
            "recurrent layer"
        )
    else:
        head = (
            f'Operator "{packed.producer}" consuming a PackedSequence input can only be supported when its '
            "corresponding PackedSequence output is unused"
        )
    return LoweringError(
        f'{head} or unpacked using "aten::_pad_packed_input". Found usage by "{operator}"{source_suffix(line)}. '
        "Resolution: pad the result with pad_packed_sequence() before it is used or returned."
    )


def reject_packed_outputs(outputs: object) -> None:
    """Refuse a forward() that returns packed data.

    Raises:
        LoweringError: an output is packed.
    """
    for leaf in pytree.tree_leaves(outputs):
        if (packed := placeholder_of(leaf)) is not None:
            raise packed_use_error(packed, "prim::Return", packed.line)


@contextlib.contextmanager
def packed_sequence_mode(batch: Any, time: Any, lengths: torch.Tensor | None) -> Iterator[PackedSequenceMode]:
    """Activate the tracing mode and the patches that it needs while the user's forward() is traced.

    `batch` and `time` are the (symbolic) sizes; `lengths` [B] masks every recurrence over them.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(unchecked_packed_states())
        # The exporter's tensor classes run tolist() in Python, where the mode does not see it.
        for tensor_class in (FunctionalTensor, FakeTensor):
            stack.enter_context(_replaced(tensor_class, "tolist", partial(_tolist, batch)))
        yield stack.enter_context(PackedSequenceMode(batch, time, lengths))


def unchecked_packed_states() -> contextlib.AbstractContextManager[None]:
    """Leave out a check of nn.GRU and nn.RNN, whose int(batch_sizes[0]) would fix the number of rows."""
    return _replaced(rnn_modules.RNNBase, "check_forward_args", _check_forward_args)


@contextlib.contextmanager
def _replaced(owner: type, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method by `make(original)`."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _check_forward_args(original: Any) -> Any:
    def check_forward_args(self: Any, x: Any, hidden: Any, batch_sizes: Any) -> None:
        if batch_sizes is None:
            original(self, x, hidden, batch_sizes)
        else:
            self.check_input(x, batch_sizes)

    return check_forward_args


def _tolist(batch: Any, original: Any) -> Any:
    def tolist(self: Any) -> Any:
        return TracedLengths(self) if self.dim() == 1 and same_size(self.shape[0], batch) else original(self)

    return tolist


class PackedSequenceMode(TorchFunctionMode):
    """Mode that intercepts every torch function of the user's forward()."""

    def __init__(self, batch: Any, time: Any, lengths: torch.Tensor | None) -> None:
        super().__init__()
        self.batch, self.time, self.lengths = batch, time, lengths
        self.max_length: tuple[int, str | None] | None = None
        """The smallest total_length of all pad_packed_sequence calls, with its line."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1)
        rule = PACKED_RULES.get(name)
        if rule is not None:
            result = rule(self, caller.f_code, args, kwargs)
            if result is not NotImplemented:
                return result
        for value in pytree.tree_leaves((args, kwargs)):
            packed = placeholder_of(value)
            if packed is not None and caller.f_code.co_filename not in _TORCH_RNN_FILES:
                attribute = func.__self__.__name__ if name == "__get__" else name
                if attribute not in _FACTS:
                    raise packed_use_error(packed, f"aten::{attribute.strip('_')}", calling_line())
        return func(*args, **kwargs)

    def mask_lengths(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return the lengths that mask a recurrence over x[B, T, ...]; None if x has other dimensions."""
        if self.lengths is None or not same_size(x.shape[0], self.batch) or not same_size(x.shape[1], self.time):
            return None
        return self.lengths

    def has_swapped_axes(self, x: torch.Tensor) -> bool:
        """Whether x[B, T, ...] has time in the place of the batch, and the batch in the place of time."""
        return same_size(x.shape[0], self.time) and same_size(x.shape[1], self.batch)


def _placeholder(padded: torch.Tensor, lengths: torch.Tensor, producer: str, zero_on_padding: bool) -> torch.Tensor:
    """Create a tensor with the rank and features of packed data; it is dead code in the graph."""
    data = padded.select(1, 0)
    setattr(data, PACKED_TAG, PackedPlaceholder(padded, lengths, producer, zero_on_padding, calling_line()))
    return data


def viewed(*args: Any, **kwargs: Any) -> Any:
    """Call `Tensor.view`; copy where the strides differ from those of torch's own layers.

    A time-major layer returns a contiguous tensor in eager mode, which can be viewed in any shape.
    """
    try:
        return torch.Tensor.view(*args, **kwargs)
    except (RuntimeError, ValueError):
        if any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values())):
            raise
        return torch.Tensor.reshape(*args, **kwargs)


def _view(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    return NotImplemented if placeholder_of(args[0]) is not None else viewed(*args, **kwargs)


def _pack(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    data, lengths, batch_first = args
    padded = data if batch_first else data.transpose(0, 1)
    data = _placeholder(padded, lengths, "aten::_pack_padded_sequence", zero_on_padding=False)
    batch_sizes = lengths.new_empty(0)
    setattr(batch_sizes, PACKED_TAG, placeholder_of(data))
    return data, batch_sizes


def _pad(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    data, _, batch_first, padding_value, total_length = args
    packed = placeholder_of(data)
    if packed is None:
        return NotImplemented
    padded = packed.padded
    if padding_value != 0 or not packed.zero_on_padding:
        valid = torch.arange(padded.shape[1]) < packed.lengths.unsqueeze(1)
        valid = valid.reshape(*valid.shape, *[1] * (padded.dim() - 2))
        padded = torch.where(valid, padded, padding_value)
    # 0 is the length of the placeholder of batch_sizes: no total_length was given.
    if not same_size(total_length, 0) and not same_size(total_length, padded.shape[1]):
        if not isinstance(total_length, int):
            raise LoweringError(
                "pad_packed_sequence's total_length is neither a constant nor the time dimension"
                f"{source_suffix(calling_line())}"
            )
        if mode.max_length is None or total_length < mode.max_length[0]:
            mode.max_length = total_length, calling_line()
        filler = padded.new_full((padded.shape[0], total_length, *padded.shape[2:]), padding_value)
        padded = torch.cat([padded, filler], 1)[:, :total_length]
    return padded if batch_first else padded.transpose(0, 1), packed.lengths


def masked_recurrence(
    cell: str, x: torch.Tensor, lengths: torch.Tensor | None, state: Any, weights: Any, *options: Any
) -> tuple[torch.Tensor, ...]:
    """Call the abstract operator of a cell over x[B, T, F]; `options` are bias, layers and bidirectional."""
    check_recurrence(cell, x, weights)
    results: tuple[torch.Tensor, ...]
    if cell == "lstm":
        results = torch.ops.neuron_lstm.lstm(x, lengths, *state, weights, *options, True)
    else:
        results = torch.ops.neuron_lstm.rnn(x, lengths, state, weights, cell, *options)
    return results


def _recurrence(cell: str) -> Callable[..., Any]:
    """Return the rule for _VF.lstm, _VF.gru, _VF.rnn_tanh and _VF.rnn_relu, packed or padded."""

    def rule(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
        packed = placeholder_of(args[0])
        lengths: torch.Tensor | None
        if packed is not None:
            x, lengths = packed.padded, packed.lengths
            _, _, state, weights, bias, layers, _, _, bidirectional = args
        else:
            x, state, weights, bias, layers, _, _, bidirectional, batch_first = args
            x = x if batch_first else x.transpose(0, 1)
            lengths = mode.mask_lengths(x)
        check_axes(cell, swapped=mode.has_swapped_axes(x))
        y, *states = masked_recurrence(cell, x, lengths, state, weights, bias, layers, bidirectional)
        if packed is not None:
            return _placeholder(y, packed.lengths, f"aten::{cell}", zero_on_padding=True), *states
        return y if batch_first else y.transpose(0, 1), *states

    return rule


def _sort(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    # pack_padded_sequence(enforce_sorted=False): a masked program needs no order, so the permutation is the identity.
    if caller is not rnn_utils.pack_padded_sequence.__code__:
        return NotImplemented
    permutation = torch.arange(args[0].shape[0])
    setattr(permutation, _IDENTITY, True)
    return args[0], permutation


def _returns_identity(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    """`.to()`, `.cpu()`, `empty_like()` and `scatter_()` of the identity permutation are the identity
    permutation.
    """
    if args and (
        is_identity(args[0]) or (placeholder_of(args[0]) is not None and caller.co_filename in _TORCH_RNN_FILES)
    ):
        return args[0]
    return NotImplemented


def _index_select(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    return args[0] if len(args) == 3 and is_identity(args[2]) else NotImplemented


def _getitem(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    tensor, key = args
    packed = placeholder_of(tensor)
    if packed is not None and tensor.dim() == 1 and caller.co_filename in _TORCH_RNN_FILES:
        return packed.padded.shape[0]  # batch_sizes[0]
    if isinstance(key, torch.Tensor) and is_identity(key):
        return tensor
    return _read_last_step(mode, tensor, key)


def _select(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    arguments = (*args, *kwargs.values())
    if len(arguments) != 3:
        return NotImplemented
    tensor, dim, index = arguments
    if not isinstance(tensor, torch.Tensor) or not isinstance(dim, int) or index != -1:
        return NotImplemented
    dim = dim % tensor.dim()
    return _read_last_step(mode, tensor, (*[slice(None)] * dim, -1))


def _read_last_step(mode: PackedSequenceMode, tensor: torch.Tensor, key: Any) -> Any:
    """Read each row's own last step for `y[:, -1]` or `y[:, -1:]` over time, as for a request without
    padding.
    """
    keys = key if isinstance(key, tuple) else (key,)
    if (
        mode.lengths is None
        or placeholder_of(tensor) is not None
        or not all(isinstance(k, (int, slice)) or k is Ellipsis for k in keys)
    ):
        return NotImplemented
    if Ellipsis in keys:
        gap = keys.index(Ellipsis)
        keys = (*keys[:gap], *[slice(None)] * (tensor.dim() - len(keys) + 1), *keys[gap + 1 :])
    steps = [dim for dim, k in enumerate(keys) if k in (-1, _LAST_SLICE) and same_size(tensor.shape[dim], mode.time)]
    rows = [dim for dim, size in enumerate(tensor.shape) if same_size(size, mode.batch)]
    if len(steps) != 1 or not rows or rows[0] == steps[0]:
        return NotImplemented
    dim = steps[0]
    index = (mode.lengths - 1).reshape([-1 if d == rows[0] else 1 for d in range(tensor.dim())])
    index = index.expand([1 if d == dim else size for d, size in enumerate(tensor.shape)])
    last = tensor.gather(dim, index)
    if keys[dim] == _LAST_SLICE:
        rest = (*keys[:dim], slice(None), *keys[dim + 1 :])
    else:
        last, rest = last.squeeze(dim), (*keys[:dim], *keys[dim + 1 :])
    return last[rest] if any(k != slice(None) for k in rest) else last


def _same(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


def _as_tensor(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    return args[0].tensor if args and isinstance(args[0], TracedLengths) else NotImplemented


def _iterate(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if caller is torch.Tensor.__iter__.__code__ and tensor.dim() == 1 and same_size(tensor.shape[0], mode.batch):
        return iter(TracedLengths(tensor))
    return NotImplemented


def _len(mode: PackedSequenceMode, caller: Any, args: Any, kwargs: Any) -> Any:
    # Python converts the result of len() to an int, which fixes the size: the exporter refuses it without a line.
    size = args[0].shape[0] if args[0].dim() else None
    if placeholder_of(args[0]) is not None or not isinstance(size, torch.SymInt):
        return NotImplemented
    line = calling_line()
    raise LoweringError(
        f"the model takes len() of a tensor whose first dimension varies{source_suffix(line)}: that fixes the "
        "dimension. Take its size(0) instead."
    )


PACKED_RULES: dict[str, Callable[..., Any]] = {
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _pad,
    "lstm": _recurrence("lstm"),
    "gru": _recurrence("gru"),
    "rnn_tanh": _recurrence("rnn_tanh"),
    "rnn_relu": _recurrence("rnn_relu"),
    "sort": _sort,
    "to": _returns_identity,
    "cpu": _returns_identity,
    "cuda": _same,
    "empty_like": _returns_identity,
    "scatter_": _returns_identity,
    "index_select": _index_select,
    "__getitem__": _getitem,
    "__len__": _len,
    "view": _view,
    "select": _select,
    "as_tensor": _as_tensor,
    "tensor": _as_tensor,
    "unbind": _iterate,
}
