"""Functions of Python and torch that fix a symbolic size, replaced while forward() is traced.

`len`, `int` and their like are replaced in the modules of the model's own code, and nowhere else.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial, partialmethod
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.modules import transformer
from torch.nn.utils import rnn as rnn_utils
from torch.utils import _pytree as pytree

from ..exporter.model_attributes import replaced_each, user_file, user_modules
from ..packing.packed_placeholder import TracedLengths
from ..packing.recurrence_fit import unchecked_packed_states
from .element_facts import counted_numbers, value_range
from .known_numbers import in_dtype, in_python, known_number, known_values, plain
from .quotients import SymbolicArray, followed_quotients
from .single_mode import TENSOR_TYPE, from_numpy
from .single_packing import inverse
from .symbolic_arrays import arrays_of_symbolic_sizes, is_symbolic_array, tensor_of

_CACHED = type(cache(len))
"""Type of functions with a cache, also those of `functools.lru_cache`."""


@contextlib.contextmanager
def replaced_functions(model: torch.nn.Module) -> Iterator[None]:
    """Replace what fixes a symbolic size or a known number, such as `len`, `int` and `tolist`."""
    kinds, methods = (FunctionalTensor, FakeTensor), {"tolist": _listed, "__array__": _array, "numpy": _array}
    functions: list[tuple[Any, str, Any]] = [
        *((kind, name, partialmethod(ours, getattr(kind, name))) for kind in kinds for name, ours in methods.items()),
        # functions of torch that no mode sees called
        (torch, "from_numpy", partial(from_numpy, original=torch.from_numpy)),
        *((torch, name, _tensor_type(getattr(torch, name), dtype)) for name, dtype in _TENSOR_TYPES.items()),
        # a layer is told that its mask is causal: the values of the mask are not compared
        (transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: is_causal is True),
        # torch's transformers run the operators that they run while they are trained
        (torch.backends.mha, "get_fastpath_enabled", lambda: False),
        (rnn_utils, "invert_permutation", partial(inverse, original=rnn_utils.invert_permutation)),
        *_free_builtins(model),
        *_cached_functions(),
    ]
    arrays, states = arrays_of_symbolic_sizes(), unchecked_packed_states()
    with contextlib.ExitStack() as stack, replaced_each(functions), followed_quotients(), arrays, states:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())  # a refused model may leave another one
        yield


def _free_builtins(model: torch.nn.Module) -> list[tuple[Any, str, Any]]:
    """Return what stands in for Python's functions in the model's modules; the exporter has its own `max` and `min`."""
    extremes = {"max": partial(_extreme, max), "min": partial(_extreme, min)}
    ours: dict[str, Any] = {"len": _length, "isinstance": _is_instance, **_TYPES, **extremes}
    modules = user_modules(model)
    return [(module, name, own) for module in modules for name, own in ours.items() if name not in vars(module)]


def _cached_functions() -> list[tuple[Any, str, Any]]:
    """Return functions with a cache in users' files, with what caches results of symbolic sizes, for one trace."""
    modules = [module for module in list(sys.modules.values()) if user_file(module)]
    found = [(module, name, value) for module in modules for name, value in vars(module).items()]
    return [(module, name, _caching(value.__wrapped__)) for module, name, value in found if isinstance(value, _CACHED)]


def _caching(function: Callable[..., Any]) -> Callable[..., Any]:
    results: dict[Any, Any] = {}

    def caching(*arguments: Any, **options: Any) -> Any:
        key = pytree.tree_map_only(torch.SymInt, lambda size: size.node.expr, (arguments, tuple(options.items())))
        if key not in results:
            results[key] = function(*arguments, **options)
        return results[key]

    return caching


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)


def _extreme(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what `max` or `min` does; of a tensor, its only known number."""
    number = known_number(arguments[0]) if len(arguments) == 1 else None
    return original(*arguments, **options) if number is None else plain(number)


def _stand_in(make: Callable[..., Any], kinds: Any, name: str, **attributes: Any) -> type:
    """Return a type that stands in for another one: a call of it makes a value, and `kinds` are its instances."""

    class Type(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, kinds)

        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            return make(*arguments, **options)

    return Type(f"_{name}", (), attributes)


def _integer(value: Any = 0, *more: Any, **options: Any) -> Any:
    """Return what `int` does, and leave symbolic sizes symbolic."""
    if isinstance(value, torch.Tensor) and (known := known_values(value)) is not None:
        whole = in_dtype(known, torch.int64)
        value = (in_python(known) if whole is None else whole).reshape(-1)[0]
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat))
    return torch.sym_int(value) if symbolic else int(value, *more, **options)


def _type(*arguments: Any, **options: Any) -> Any:
    """Return what `type` does; of the tensors and sizes of a trace, their types in eager mode."""
    if len(arguments) == 1 and isinstance(arguments[0], (FunctionalTensor, FakeTensor)):
        return torch.Tensor
    kind: Any = type(*arguments, **options)
    return _TYPES["int"] if kind in (int, torch.SymInt) else kind


def _is_instance(value: Any, kinds: Any) -> bool:
    """Whether a value is an instance as in eager mode, in which a size is an integer."""
    return isinstance(0 if isinstance(value, torch.SymInt) else value, kinds)


def _range(*arguments: Any) -> range:
    """Return what `range` does; chunks fix not the timesteps, but that the first chunk of them has all."""
    start, stop, step = (0, arguments[0], 1) if len(arguments) == 1 else (*arguments, 1)[:3]
    if isinstance(stop, torch.SymInt) and start == 0 and isinstance(step, int) and step > 1:
        chunks = (stop + step - 1) // step
        if chunks <= 1:
            return range(0, step, step)
    return range(*arguments)


_TYPES = {
    "int": _stand_in(_integer, (int, torch.SymInt), "int"),
    "type": _stand_in(_type, type, "type"),
    "range": _stand_in(_range, range, "range"),
}


_TENSOR_TYPES = {
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
}


def _tensor_type(original: Any, dtype: torch.dtype) -> type:
    """Return a type such as `torch.LongTensor` that takes symbolic numbers."""

    def make(*arguments: Any) -> Any:
        if len(arguments) == 1 and is_symbolic_array(arguments[0]):
            return tensor_of(arguments[0], dtype)
        is_list = len(arguments) == 1 and isinstance(arguments[0], (list, tuple, np.ndarray))
        numbers = np.asarray(arguments[0], dtype=object) if is_list else np.zeros(0)
        known = isinstance(arguments[0], np.ndarray) and arguments[0].dtype == object if arguments else False
        if known or any(isinstance(value, torch.SymInt) for value in numbers.reshape(-1)):
            return torch.tensor(numbers.tolist(), dtype=dtype)
        return original(*arguments)

    return _stand_in(make, original, original.__name__, **{TENSOR_TYPE: original})


def _array(tensor: Any, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return known numbers as an array, as numpy's functions of a tensor ask for them."""
    known = known_values(tensor)
    return original(tensor, *arguments, **options) if known is None else in_python(known).view(SymbolicArray)


def _listed(tensor: Any, original: Callable[[Any], Any]) -> Any:
    if (known := known_values(tensor)) is not None:
        return in_python(known).tolist()
    if (numbers := counted_numbers(tensor)) is not None:
        return [*numbers]
    # Lengths of sequences within the request are data: only packing may take them.
    inner = tensor.dim() == 1 and value_range(tensor) is not None
    return TracedLengths(tensor, "sequences within a timestep") if inner else original(tensor)
