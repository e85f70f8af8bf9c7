"""Trace of forward() for one request alone: batch size 1, no padding, a symbolic number of timesteps.

Alone, a request's lengths are known: all of its timesteps. So what a model does with lengths in Python (`tolist()`,
`max()`, sorting, a loop that builds a mask) is followed exactly, packing is the identity, and nothing mixes rows.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules import rnn as rnn_modules
from torch.nn.utils import rnn as rnn_utils
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..config.schema import ServingConfig
from .errors import (
    LoweringError,
    calling_line,
    explained_export_errors,
    is_user_file,
    reject_non_tensors,
    source_suffix,
)
from .export import bind_arguments, example_tensor, export_quietly, replaced_forward, with_parameter_names

_TORCH_RNN_FILES = {rnn_modules.__file__, rnn_utils.__file__}
_KNOWN = "_neuron_lstm_known"
_BATCHES, _TIMES = (1, 2, 5), 40
_EXAMPLE_TIME = 23
"""Timesteps to trace with: unlikely to be a size in the model, and enough for its strides."""


@dataclass(frozen=True)
class SingleExport:
    """The functional graph of one request, with what the model returns."""

    exported: torch.export.ExportedProgram
    output_tree: pytree.TreeSpec


def export_single(model: torch.nn.Module, config: ServingConfig) -> SingleExport:
    """Export forward() for one request of any number of timesteps.

    Raises:
        LoweringError: the graph depends on data, or on one number of timesteps.
    """
    notes: dict[str, Any] = {}
    specs = config.input_specs

    def forward(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        time = next(
            tensor.shape[spec.time_dim] for spec, tensor in zip(specs, inputs, strict=True) if spec.time_dim is not None
        )
        with _tracing(model) as mode:
            lengths = mode.known(torch.full((1,), time, dtype=torch.int64), [time])
            own = own_forward(**bind_arguments(config, inputs, lengths))
        leaves, notes["output_tree"] = pytree.tree_flatten(own)
        reject_non_tensors("forward()", leaves, allow_none=True)
        return tuple(leaf for leaf in leaves if leaf is not None)

    own_forward = model.forward
    traced = with_parameter_names(forward, [spec.name.replace(".", "_") for spec in specs])
    tensors = [example_tensor(spec, 1, _EXAMPLE_TIME) for spec in specs]
    dims = [{dim: torch.export.Dim.AUTO for dim, size in enumerate(spec.shape) if size == "time"} for spec in specs]
    name = f"{type(model).__name__}.forward"
    with replaced_forward(model, traced), explained_export_errors(name, dynamic_shapes=True):
        exported = export_quietly(model, tensors, dims)
        functional = exported.run_decompositions({})
    reject_guards(exported, name, {spec.name.replace(".", "_"): _alone(spec.shape) for spec in specs})
    return SingleExport(functional, notes["output_tree"])


def reject_guards(exported: torch.export.ExportedProgram, name: str, sizes: Mapping[str, Sequence[int | str]]) -> None:
    """Refuse a program that holds only for some numbers of timesteps, such as odd ones.

    `sizes` are the shapes of the inputs by name. The conditions of the exporter are evaluated for many sizes.

    Raises:
        LoweringError: names the condition.
    """
    lowest = max((int(bounds.lower) for bounds in exported.range_constraints.values()), default=1)
    for guard in exported._guards_code:
        for batch, time in itertools.product(_BATCHES, range(lowest, lowest + _TIMES)):
            known = {"batch": batch, "time": time}
            held = {key: _Sized([known.get(str(size), size) for size in shape]) for key, shape in sizes.items()}
            if "==" in guard and not eval(guard, {"L": held}):  # noqa: S307 - written by torch's exporter
                raise LoweringError(f"{name} takes another way for some numbers of timesteps: it holds only if {guard}")


@dataclass(frozen=True)
class _Sized:
    """Stand-in for a tensor in a condition of the exporter."""

    sizes: Sequence[Any]

    def size(self) -> Sequence[Any]:
        """Return the sizes."""
        return self.sizes


def _alone(shape: Sequence[int | str]) -> list[int | str]:
    return [1 if size == "batch" else size for size in shape]


@contextlib.contextmanager
def _tracing(model: torch.nn.Module) -> Iterator[SingleRequestMode]:
    """Activate the mode, and replace what Python itself turns into a fixed number: `len`, `int` and `tolist`."""
    mode = SingleRequestMode()
    with contextlib.ExitStack() as stack:
        for tensor_class in (FunctionalTensor, FakeTensor):
            original = tensor_class.tolist
            stack.callback(setattr, tensor_class, "tolist", original)
            setattr(tensor_class, "tolist", lambda self, original=original: _listed(self, original))
        for module in _user_modules(model):
            for name, function in (("len", _length), ("int", _integer), ("max", _extreme(max)), ("min", _extreme(min))):
                if name not in vars(module):
                    setattr(module, name, function)
                    stack.callback(delattr, module, name)
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        yield stack.enter_context(mode)


def _user_modules(model: torch.nn.Module) -> list[Any]:
    """Return the Python modules in which the classes of the model are defined."""
    names = {cls.__module__ for part in model.modules() for cls in type(part).__mro__}
    found = [sys.modules[name] for name in names if name in sys.modules]
    return [module for module in found if is_user_file(getattr(module, "__file__", None) or "<none>")]


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


def _extreme(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `max` or `min` that takes the only known number of a tensor."""

    def extreme(*arguments: Any, **options: Any) -> Any:
        known = known_values(arguments[0]) if len(arguments) == 1 else None
        return known.reshape(-1)[0] if known is not None and known.size == 1 else original(*arguments, **options)

    return extreme


class _IntegerType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)

    def __call__(cls, value: Any = 0, *more: Any) -> Any:
        if isinstance(value, torch.Tensor) and (known := known_values(value)) is not None:
            value = known.reshape(-1)[0]
        return torch.sym_int(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else int(value, *more)


class _integer(metaclass=_IntegerType):  # noqa: N801 - it stands in for `int`
    """`int` that leaves symbolic sizes symbolic."""


def _listed(tensor: Any, original: Callable[[Any], Any]) -> Any:
    known = known_values(tensor)
    return original(tensor) if known is None else known.tolist()


def known_values(tensor: object) -> Any:
    """Return the numbers of a tensor that are known while tracing: an array of objects; None if they are not."""
    return getattr(tensor, _KNOWN, None) if isinstance(tensor, torch.Tensor) else None


class SingleRequestMode(TorchFunctionMode):
    """Mode that makes packing the identity, and follows the numbers of lengths."""

    def known(self, tensor: torch.Tensor, values: Any) -> torch.Tensor:
        """Note the numbers of a tensor."""
        setattr(tensor, _KNOWN, np.array(values, dtype=object))
        return tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
        rule = _RULES.get(name)
        if rule is not None:
            result = rule(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        args, kwargs = _with_symbols(name, args, kwargs)
        values = _values_after(name, args, kwargs)
        result = func(*args, **kwargs)
        return result if values is None else self._noted(result, values)

    def _noted(self, result: Any, values: Any) -> Any:
        if isinstance(result, (tuple, list)):
            return (
                type(result)(self._noted(r, v) for r, v in zip(result, values, strict=True))
                if isinstance(result, list)
                else tuple(self._noted(r, v) for r, v in zip(result, values, strict=True))
            )
        if not isinstance(result, torch.Tensor):
            return result
        array = np.asarray(values, dtype=object)
        if array.shape != tuple(result.shape):
            return result
        if all(isinstance(v, (int, bool, float)) for v in array.reshape(-1)):
            result = torch.tensor(array.tolist(), dtype=result.dtype)
        return self.known(result, array)


_SIZED = {
    "zeros",
    "ones",
    "empty",
    "full",
    "arange",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "view",
    "reshape",
    "expand",
    "repeat",
    "narrow",
    "select",
    "range",
}


def _with_symbols(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Use known tensors of no dimensions as numbers, in sizes and keys."""

    def symbol(value: Any) -> Any:
        known = known_values(value)
        if known is not None and known.shape == ():
            return known.item()
        if isinstance(value, slice):
            return slice(symbol(value.start), symbol(value.stop), symbol(value.step))
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return type(value)(symbol(item) for item in value)
        return value

    if name in _SIZED:
        first = args[:1] if args and isinstance(args[0], torch.Tensor) else ()
        return (*first, *(symbol(a) for a in args[len(first) :])), {k: symbol(v) for k, v in kwargs.items()}
    if name in ("__getitem__", "__setitem__"):
        return (args[0], symbol(args[1]), *args[2:]), kwargs
    return args, kwargs


_SAME = {"to", "cpu", "clone", "detach", "contiguous", "long", "int", "type", "data", "cuda", "numpy", "type_as"}
_BINARY = ("add", "sub", "mul", "floordiv", "truediv", "mod", "gt", "ge", "lt", "le", "eq", "ne")
_TORCH_NAMES = {"floor_divide": "floordiv", "div": "truediv", "true_divide": "truediv", "remainder": "mod"}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": getattr(operator, name) for name in (*_BINARY, "neg")},
    **{f"__r{name}__": lambda a, b, name=name: getattr(operator, name)(b, a) for name in _BINARY[:6]},
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "gt", "ge", "lt", "le", "eq", "ne", "neg")},
    **{name: getattr(operator, own) for name, own in _TORCH_NAMES.items()},
}


def _values_after(name: str, args: Any, kwargs: Any) -> Any:
    """Return the numbers of a call's result, if those of all its tensors are known."""
    tensors = [a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
    if not tensors or any(known_values(tensor) is None for tensor in tensors):
        return None
    own, *others = [known_values(a) if isinstance(a, torch.Tensor) else a for a in args]
    if name in _SAME:
        return own
    if (
        name in _ARITHMETIC
        and not kwargs
        and all(isinstance(o, (np.ndarray, int, float, torch.SymInt)) for o in others)
    ):
        return _elementwise(_ARITHMETIC[name], own, others)
    if (
        own.size == 1
        and name in ("max", "min", "amax", "amin", "sum", "any", "all", "prod")
        and not others
        and not kwargs
    ):
        return own.reshape(())
    if own.shape == (1,) and name in ("max", "min", "sort"):
        return own, np.array([0], dtype=object)
    if own.shape == (1,) and name == "argsort":
        return np.array([0], dtype=object)
    if name == "__getitem__":
        return _element(own, others[0])
    shapes = {"squeeze": (), "unsqueeze": (1, 1), "flatten": (1,)}
    if own.size == 1 and name in ("squeeze", "view", "reshape", "flatten", "unsqueeze", "index_select", "flip"):
        return own if name in ("index_select", "flip") else own.reshape(shapes.get(name, (1,)))
    return None


def _elementwise(function: Callable[..., Any], own: Any, others: list[Any]) -> Any:
    arrays = np.broadcast_arrays(own, *(np.asarray(other, dtype=object) for other in others))
    result = np.empty(arrays[0].shape, dtype=object)
    for place in np.ndindex(result.shape):
        result[place] = function(*(array[place] for array in arrays))
    return result


def _element(own: Any, key: Any) -> Any:
    keys = key if isinstance(key, tuple) else (key,)
    if all(k is None or k is Ellipsis or isinstance(k, (int, slice)) for k in keys):
        return own[key]
    if isinstance(key, np.ndarray) and all(isinstance(k, int) for k in key.reshape(-1)):
        return own[key.astype(int)]
    return None


def _item(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    known = known_values(args[0])
    return NotImplemented if known is None or known.size != 1 else known.reshape(-1)[0]


def _truth(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    known = known_values(args[0])
    return NotImplemented if known is None or known.size != 1 else bool(known.reshape(-1)[0])


def _array(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    known = known_values(args[0])
    return NotImplemented if known is None else known


def _from_numbers(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Make a tensor of symbolic numbers, as `torch.tensor([t])` and `torch.from_numpy` do of plain ones."""
    if not args or isinstance(args[0], torch.Tensor):
        return args[0] if args and known_values(args[0]) is not None else NotImplemented
    values = np.asarray(args[0], dtype=object)
    if not any(isinstance(value, torch.SymInt) for value in values.reshape(-1)):
        if isinstance(args[0], np.ndarray) and args[0].dtype == object:
            return mode.known(torch.tensor(values.tolist()), values)
        return NotImplemented
    parts = [torch.full((1,), value, dtype=kwargs.get("dtype") or torch.int64) for value in values.reshape(-1)]
    return mode.known(torch.cat(parts).reshape(values.shape), values)


def _unbound(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Iterate over known numbers as tensors of no dimensions."""
    known = known_values(args[0])
    if known is None or known.ndim != 1:
        return NotImplemented
    return tuple(mode.known(args[0].select(0, index), value) for index, value in enumerate(known))


def _same(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


def _pack(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    data, lengths, batch_first = args
    known = known_values(lengths)
    if known is None or known.size != 1:
        raise LoweringError(
            f"pack_padded_sequence takes lengths that are computed from data{source_suffix(calling_line())}; name the "
            "argument with the true lengths under `lengths`"
        )
    steps = known.reshape(-1)[0]
    rows = data.squeeze(0 if batch_first else 1)
    rows = rows if _same_number(steps, rows.shape[0]) else rows[:steps]
    return rows, mode.known(torch.ones(rows.shape[0], dtype=torch.int64), [1])


def _same_number(a: Any, b: Any) -> bool:
    nodes = [n.node.expr if isinstance(n, torch.SymInt) else n for n in (a, b)]
    return bool(nodes[0] == nodes[1])


def _pad(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    data, _, batch_first, padding_value, total = args
    steps = data.shape[0]
    if not _same_number(total, steps):
        data = torch.nn.functional.pad(data, (*[0, 0] * (data.dim() - 1), 0, total - steps), value=padding_value)
    lengths = mode.known(torch.full((1,), steps, dtype=torch.int64), [steps])
    return data.unsqueeze(0 if batch_first else 1), lengths


def _recurrence(cell: str) -> Callable[..., Any]:
    """Return the rule for _VF.lstm, _VF.gru, _VF.rnn_tanh and _VF.rnn_relu, packed or padded."""

    def rule(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
        packed = isinstance(args[1], torch.Tensor) and isinstance(args[3], (list, tuple))
        if packed:
            x, _, state, weights, bias, layers, _, _, bidirectional = args
            x, batch_first = x.unsqueeze(0), True
        else:
            x, state, weights, bias, layers, _, _, bidirectional, batch_first = args
            x = x if batch_first else x.transpose(0, 1)
        if cell == "lstm":
            y, *states = torch.ops.neuron_lstm.lstm(x, None, *state, weights, bias, layers, bidirectional, True)
        else:
            y, *states = torch.ops.neuron_lstm.rnn(x, None, state, weights, cell, bias, layers, bidirectional)
        if packed:
            return y.squeeze(0), *states
        return y if batch_first else y.transpose(0, 1), *states

    return rule


def _key(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Read `batch_sizes[0]` as a number, where torch's own layers do."""
    known = known_values(args[0])
    if known is not None and args[1] == 0 and sys._getframe(2).f_code.co_filename in _TORCH_RNN_FILES:
        return known[0]
    return NotImplemented


def _inverted(mode: SingleRequestMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the inverse of the only permutation of one row, where torch's own layers invert it."""
    known = known_values(args[2]) if len(args) > 2 else None
    return args[2] if known is not None and known.tolist() == [0] else NotImplemented


_RULES: dict[str, Callable[..., Any]] = {
    "_pack_padded_sequence": _pack,
    "_pad_packed_sequence": _pad,
    "lstm": _recurrence("lstm"),
    "gru": _recurrence("gru"),
    "rnn_tanh": _recurrence("rnn_tanh"),
    "rnn_relu": _recurrence("rnn_relu"),
    "item": _item,
    "__bool__": _truth,
    "numpy": _array,
    "from_numpy": _from_numbers,
    "tensor": _from_numbers,
    "as_tensor": _from_numbers,
    "unbind": _unbound,
    "cuda": _same,
    "scatter_": _inverted,
    "__getitem__": _key,
}
