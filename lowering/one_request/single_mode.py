"""Tracing mode for one request alone, whose lengths are known; `single_packing.py` has its packing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.utils import rnn as rnn_utils
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..errors import LoweringError, calling_line, source_suffix
from ..exported_graph import each_dim
from ..exporter.model_attributes import replaced
from ..packing.packed_placeholder import TORCH_RNN_FILES, TracedLengths
from ..packing.packed_rules import viewed
from .element_facts import (
    COMPARED,
    as_number,
    note_positions_after,
    note_range_after,
    only_true,
    uniform_after,
    uniform_value,
    with_uniform_value,
)
from .known_numbers import (
    in_dtype,
    known_number,
    known_values,
    out_of_place,
    plain,
    values_after,
    with_known_values,
    with_symbols,
)
from .library_checks import embedding_bag, pooled_over_time, pooling_arguments, truth_that_passes, windows_over_time
from .quotients import RepeatedList, joined
from .single_packing import follow_packed, inner_result, pack, pad, recurrence
from .symbolic_arrays import is_symbolic_array, tensor_of
from .written_views import note_views_after, note_writes, shares_memory

TENSOR_TYPE = "_neuron_lstm_tensor_type"
"""Attribute of a replacement of a type such as torch.LongTensor: torch's own type."""


class SingleRequestMode(TorchFunctionMode):
    """Mode that makes packing the identity, and follows the numbers of lengths."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
        if (result := inner_result(name, sys._getframe(1).f_code, args, kwargs)) is not NotImplemented:
            return result
        if (rule := _RULES.get(name)) is not None:
            result = rule(self, func, args, kwargs)
            if result is not NotImplemented:
                note_views_after(args, kwargs, result)
                return result
        if name == "type":
            args = tuple(getattr(argument, TENSOR_TYPE, argument) for argument in args)
        args, kwargs = with_symbols(name, args, kwargs)
        values = values_after(name, args, kwargs)
        note_writes(name, args, kwargs)
        result = _CALLS.get(name, func)(*args, **kwargs)
        if torch.get_default_dtype() is not torch.float32:
            _reject_default_dtype((args, kwargs), result)
        note_views_after(args, kwargs, result)
        follow_packed(name, args, kwargs, result)
        note_range_after(name, args, kwargs, result)
        note_positions_after(name, args, kwargs, result)
        if out_of_place(name) is not None and args:
            return _changed(args[0], result, values)
        return _with_uniform(name, args, kwargs, result) if values is None else self._noted(result, values)

    def _noted(self, result: Any, values: Any) -> Any:
        if isinstance(result, (tuple, list)):
            kind = list if isinstance(result, list) else tuple
            return kind(self._noted(r, v) for r, v in zip(result, values, strict=True))
        if not isinstance(result, torch.Tensor):
            return result
        array = in_dtype(np.asarray(values, dtype=object), result.dtype)
        if array is not None and array.size == 1 and _is_single(result):
            array = array.reshape(tuple(result.shape))
        if array is None or array.shape != tuple(result.shape):
            return result
        if all(isinstance(v, (int, bool, float)) for v in array.reshape(-1)) and not shares_memory(result):
            result = _constant(array, result)
        return with_known_values(result, array)


def _reject_default_dtype(arguments: Any, result: Any) -> None:
    """Refuse floats that have torch's default dtype for want of another one: a host has its own default.

    Raises `LoweringError`: names the line.
    """
    default = torch.get_default_dtype()
    has_dtype = any(
        isinstance(leaf, torch.dtype)
        or (isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()))
        for leaf in pytree.tree_leaves(arguments)
    )
    results = (leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))
    if not has_dtype and any(leaf.dtype is default for leaf in results):
        raise LoweringError(
            f"the model takes torch's default dtype, which it sets to {default}{source_suffix(calling_line())}: a "
            "program has no such default. Give the dtype, as in torch.zeros(8, dtype=x.dtype)"
        )


def _changed(tensor: Any, result: Any, values: Any) -> Any:
    """Record the numbers of a tensor that a call has changed in place, if they are known; return the result."""
    for changed in (tensor, result):
        if isinstance(changed, torch.Tensor):
            array = None if values is None else in_dtype(np.asarray(values, dtype=object), changed.dtype)
            if array is not None and array.shape == tuple(changed.shape):
                with_known_values(changed, array)
    return result


_CALLS: dict[str, Callable[..., Any]] = {
    "view": viewed,
    "data": torch.Tensor.detach,
    "__deepcopy__": lambda tensor, memo: tensor.clone(),
}
"""Functions in place of torch's own: the exporter takes `data` for a constant, and a copy reads the memory."""


def _with_uniform(name: str, args: Any, kwargs: Any, result: Any) -> Any:
    """Record results whose elements are all equal; the number of a result with one element is known."""
    if name == "sum" and args and (value := uniform_value(args[0])) is not None and _is_single(result):
        is_integer = float(value).is_integer()  # sums of others are rounded at each step
        return _with_numbers(result, [int(value) * args[0].numel()]) if is_integer else result
    if (value := uniform_after(name, args, kwargs, result)) is not None:
        for tensor in [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]:
            value = as_number(value, tensor.dtype)
            numbers = [value, *(args[1:] if name.strip("_") in COMPARED else ())]
            small = {tensor.dtype, getattr(args[0], "dtype", None)} & _SMALL
            wraps = bool(small) and not all(number in range(128) for number in numbers)
            if not wraps and (tensor.dtype != torch.int64 or name not in ("max", "min")):
                with_uniform_value(tensor, value)
                if _is_single(tensor):
                    with_known_values(tensor, np.full(tuple(tensor.shape), value, dtype=object))
    return result


_SMALL = {torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16}
"""Types that hold the integers up to 127 exactly, and wrap or round others."""


def _with_numbers(tensor: torch.Tensor, values: Any) -> torch.Tensor:
    """Record the numbers of a tensor, unless its type may round or wrap them, and return it."""
    array = in_dtype(np.asarray(values, dtype=object), tensor.dtype)
    return tensor if array is None else with_known_values(tensor, array.reshape(tuple(tensor.shape)))


def _is_single(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and all(type(size) is int and size == 1 for size in result.shape)


def _constant(array: Any, like: torch.Tensor) -> torch.Tensor:
    """Make a tensor of plain numbers; one of a single number needs no constant in the graph."""
    if array.size == 1:
        return torch.full(tuple(like.shape), array.reshape(-1)[0], dtype=like.dtype)
    return torch.tensor(array.tolist(), dtype=like.dtype)


def _item(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    return NotImplemented if (number := known_number(args[0])) is None else plain(number)


def _index(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return a known number as the index of a list, as in `order[ids[i]] = i`."""
    number = known_number(args[0])
    return number if isinstance(number, int) else NotImplemented


def _truth(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    if (number := known_number(args[0])) is not None:
        return bool(number)
    passed = truth_that_passes(sys._getframe(2))
    return NotImplemented if passed is None else passed


def _by_name(function: Callable[..., Any], mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Call another function in place of torch's, with its arguments by name."""
    given = inspect.signature(func).bind(*args, **kwargs)
    given.apply_defaults()
    return function(**given.arguments)


def _followed(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Follow the code of one of torch's functions, which checks values."""
    with mode, replaced(torch.nn.functional, "has_torch_function_variadic", lambda *_: False):
        return func(*args, **kwargs)


def from_numpy(array: Any, original: Callable[..., Any]) -> torch.Tensor:
    """Make a tensor of an array, whose numbers may be symbolic."""
    if is_symbolic_array(array):
        return tensor_of(array)
    made: torch.Tensor = original(array) if array.dtype != object else _from_numbers(original, (array,), {})
    return made


def _from_numbers(func: Any, args: Any, kwargs: Any) -> Any:
    """Make a tensor of symbolic numbers, as `torch.tensor([t])` and `torch.from_numpy` do of plain ones."""
    if args and isinstance(args[0], TracedLengths):
        return args[0].tensor
    if not args or isinstance(args[0], torch.Tensor):
        return args[0] if args and known_values(args[0]) is not None else NotImplemented
    values = np.asarray(args[0], dtype=object)
    if type(args[0]) is int or (values.shape == (1,) and type(values[0]) is int):
        return with_known_values(func(*args, **kwargs), values)
    if not _has_symbols(values):
        if isinstance(args[0], np.ndarray) and args[0].dtype == object:
            return with_known_values(torch.tensor(values.tolist()), values)
        return NotImplemented
    return _from_symbols(values, kwargs.get("dtype") or torch.int64)


def _has_symbols(values: Any) -> bool:
    return any(isinstance(value, torch.SymInt) for value in values.reshape(-1))


def _from_symbols(values: Any, dtype: torch.dtype) -> torch.Tensor:
    parts = [torch.full((1,), value, dtype=dtype) for value in values.reshape(-1)]
    return _with_numbers(torch.cat(parts).reshape(values.shape), values)


def _from_data(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Make a tensor of an array of symbolic sizes, or of symbolic numbers."""
    if args and is_symbolic_array(args[0]):
        return tensor_of(args[0], kwargs.get("dtype"))
    numbers = [*map(known_number, args[0])] if args and type(args[0]) in (list, tuple) else []  # list(lengths)
    if numbers and all(number is not None for number in numbers):
        return _from_symbols(np.asarray(numbers, dtype=object), kwargs.get("dtype") or args[0][0].dtype)
    return _from_numbers(func, args, kwargs)


def _filled(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Note the numbers of `torch.full((1,), T)`."""
    given = {**dict(zip(("size", "fill_value"), args, strict=False)), **kwargs}
    fill = given.get("fill_value")
    is_known = isinstance(fill, torch.SymInt) and tuple(given["size"]) == (1,)
    return _with_numbers(func(*args, **kwargs), [fill]) if is_known else NotImplemented


def _new_tensor(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Copy known numbers, as `x.new_tensor(lengths)` and `x.new(lengths.tolist())` do."""
    known = known_values(args[1]) if len(args) == 2 else None
    if known is not None:
        return _with_numbers(args[1].clone().to(args[0].dtype), known)
    if len(args) == 2 and type(args[1]) in (list, tuple):  # a torch.Size is the shape of what `x.new` returns
        values = np.asarray(args[1], dtype=object)
        return _from_symbols(values, kwargs.get("dtype") or args[0].dtype) if _has_symbols(values) else NotImplemented
    return NotImplemented


def _unbound(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Iterate over known numbers as tensors of no dimensions."""
    known = known_values(args[0])
    if known is None or known.ndim != 1:
        return NotImplemented
    return tuple(with_known_values(args[0].select(0, index), value) for index, value in enumerate(known))


def _pooled(name: str, mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Pool: a window as large as the input is a reduction.

    A maximum in one dimension is one in two: exported in one, torch's function fixes the size of its input.
    """
    result = pooled_over_time(name, func, args, kwargs)
    if result is not NotImplemented or name != "max_pool1d":
        return result
    given = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, **pooling_arguments("max", args, kwargs)}
    if given.get("return_indices"):
        return NotImplemented
    names = ("kernel_size", "stride", "padding", "dilation")
    kernel, stride, padding, dilation = ((*each_dim(given[name], 1), None)[0] for name in names)
    window = ((1, kernel), (1, stride or kernel), (0, padding), (1, dilation))
    return torch.max_pool2d(given["input"].unsqueeze(-2), *window, given["ceil_mode"]).squeeze(-2)


def _joined(name: str, mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Join a list that is repeated for each timestep, by `torch.cat` or `torch.stack`."""
    given = {**dict(zip(("tensors", "dim"), args, strict=False)), **kwargs}
    tensors = given.pop("tensors", None)
    is_repeated = isinstance(tensors, RepeatedList) and list.__len__(tensors) == 1  # none was replaced
    return joined(name, tensors, **given) if is_repeated else NotImplemented


def _padded_together(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Pad a list of one sequence, which needs no padding, as `pack_sequence` does."""
    sequences, batch_first = (*args, False)[:2]
    if not isinstance(sequences, (list, tuple)) or len(sequences) != 1:
        return NotImplemented
    return sequences[0].unsqueeze(0 if kwargs.get("batch_first", batch_first) else 1)


def _key(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Read `batch_sizes[0]` as a number, where torch's own layers do; select by a mask of the first timesteps."""
    caller = sys._getframe(2)
    if caller.f_code is rnn_utils.unpad_sequence.__code__:
        steps = known_values(caller.f_locals["length"])
        return NotImplemented if steps is None else args[0][: steps.reshape(-1)[0]]
    if _selects_all(args[1]):
        return args[0].flatten(0, args[1].dim() - 1) if args[1].dim() > 1 else args[0]
    if (place := only_true(args[1])) is not None:
        return args[0].flatten(0, args[1].dim() - 1)[place : place + 1]
    first = isinstance(args[1], int) and args[1] == 0
    if first and uniform_value(args[0]) == 1 and caller.f_code.co_filename in TORCH_RNN_FILES:
        return 1
    return NotImplemented


def _selects_all(mask: Any) -> bool:
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        return False
    known = known_values(mask)
    return uniform_value(mask) is True if known is None else all(value is True for value in known.reshape(-1))


def _selected(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return all elements, where the mask is true everywhere."""
    if kwargs or not _selects_all(args[1]):
        return NotImplemented
    with mode:
        return args[0].expand(torch.broadcast_shapes(args[0].shape, args[1].shape)).flatten()


def _written(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Write all elements, where the mask is true everywhere."""
    tensor, mask, value = args
    if not _selects_all(mask) or not isinstance(value, torch.Tensor) or mask.dim() != 1:
        return NotImplemented
    with mode:
        tensor[:] = value
    return None


def _chosen(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Choose by a mask of bytes, which eager mode takes and the exporter does not."""
    if func is not torch.where or len(args) != 3 or args[0].dtype != torch.uint8:
        return NotImplemented
    with mode:
        return torch.where(args[0].bool(), *args[1:])


def _nonzero(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Count by a comparison and a sum, whose numbers are followed."""
    if not args:
        return NotImplemented
    with mode:
        return (args[0] != 0).sum((*args[1:], kwargs.get("dim"))[0])


_RULES: dict[str, Callable[..., Any]] = {
    "_pack_padded_sequence": pack,
    "_pad_packed_sequence": pad,
    **{cell: partial(recurrence, cell) for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    "item": _item,
    "__bool__": _truth,
    "__index__": _index,
    **dict.fromkeys(("tensor", "as_tensor"), _from_data),
    "full": _filled,
    **dict.fromkeys(("new_tensor", "new"), _new_tensor),
    "unbind": _unbound,
    "cuda": lambda mode, func, args, kwargs: args[0],
    **{name: partial(_pooled, name) for name in ("max_pool1d", "avg_pool1d", "max_pool2d", "avg_pool2d")},
    "unfold": lambda mode, func, args, kwargs: windows_over_time(func, args, kwargs),
    **{name: partial(_joined, name) for name in ("cat", "stack")},
    "pad_sequence": _padded_together,
    "embedding_bag": partial(_by_name, embedding_bag),
    "gaussian_nll_loss": _followed,
    "__getitem__": _key,
    "masked_select": _selected,
    "count_nonzero": _nonzero,
    "where": _chosen,
    "__setitem__": _written,
}
