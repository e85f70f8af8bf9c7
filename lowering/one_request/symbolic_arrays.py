"""Arrays of numpy whose sizes are symbolic, such as `np.ones((T, T))`, while a request is traced.

Numpy takes numbers only, so that a mask of it would fix the timesteps. torch has numpy's functions over its own
tensors, which take symbolic sizes, with numpy's types and rules of promotion.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._numpy import _dtypes
from torch.utils import _pytree as pytree

from ..exporter.model_attributes import replaced_each
from .quotients import SymbolicArray

torch_numpy: Any = torch._numpy
_FACTORIES = {"ones": 1, "zeros": 1, "full": 1, "eye": 2, "identity": 1, "tri": 2, "arange": None}
"""Functions of sizes, with the number of those; all arguments of one are."""
_OF_ARRAYS = (
    *("triu", "tril", "logical_not", "logical_and", "logical_or", "where", "expand_dims", "squeeze", "reshape"),
    *("transpose", "swapaxes", "ones_like", "zeros_like", "full_like", "stack", "concatenate", "repeat", "tile"),
    *("broadcast_to", "cumsum", "abs", "minimum", "maximum", "sqrt", "exp", "log", "sin", "cos", "power", "ravel"),
    *("add", "subtract", "multiply", "divide", "equal", "not_equal", "greater", "less", "greater_equal", "less_equal"),
    *("outer", "flip", "asarray", "array", "ascontiguousarray"),
)


class _Function:
    """Function of numpy, or that of torch for symbolic arguments."""

    def __init__(self, original: Any, symbolic: Callable[..., Any], sizes: int | None = 0) -> None:
        """`sizes` is how many arguments are sizes; None if all are."""
        self._original, self._symbolic, self._sizes = original, symbolic, sizes

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        sizes = pytree.tree_leaves((arguments[: self._sizes], options.get("shape")))
        symbolic = any(isinstance(size, torch.SymInt) for size in sizes)
        if symbolic or any(map(is_symbolic_array, pytree.tree_leaves((arguments, options)))):
            return self._symbolic(*arguments, **options)
        return self._original(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def is_symbolic_array(value: object) -> bool:
    """Whether a value is an array of a symbolic size."""
    return isinstance(value, torch_numpy.ndarray)


def tensor_of(array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the tensor of an array of a symbolic size."""
    tensor: torch.Tensor = array.tensor
    return tensor if dtype is None else tensor.to(dtype)


def arrays_of_symbolic_sizes() -> AbstractContextManager[None]:
    """In this context, functions of numpy take symbolic sizes, and the arrays that they make of them."""
    functions = [(np, name, _function(name)) for name in (*_FACTORIES, *_OF_ARRAYS)]
    return replaced_each([*functions, (_dtypes, "dtype", partial(_known_dtype, _dtypes.dtype))])


def _function(name: str) -> _Function:
    original = getattr(np, name)
    symbolic = {"eye": _eye, "identity": _eye}.get(name) or getattr(torch_numpy, name)
    if name in ("array", "asarray"):
        original = partial(_array, original)
    return _Function(original, symbolic, _FACTORIES.get(name, 0))


def _array(original: Callable[..., Any], values: Any, dtype: Any = None, **options: Any) -> Any:
    """Return `np.array(values, dtype)`; numbers of which some are symbolic stay so."""
    if isinstance(values, (list, tuple)) and any(isinstance(v, (torch.SymInt, torch.SymFloat)) for v in values):
        values = original(values, object).view(SymbolicArray)
    if isinstance(values, SymbolicArray):
        return values.copy() if dtype is None else values.astype(dtype)
    return original(values, dtype, **options)


def _eye(rows: Any, columns: Any = None, k: int = 0, dtype: Any = float) -> Any:
    """Return ones on a diagonal; torch's own writes them in place, which an exported graph must not."""
    across, down = (torch_numpy.arange(rows if size is None else size) for size in (columns, None))
    return (across[None, :] - down[:, None] == k).astype(dtype)


def _known_dtype(original: Callable[[Any], Any], given: Any) -> Any:
    """Return torch's description of a type, also of numpy's own."""
    theirs = isinstance(given, np.dtype) or (isinstance(given, type) and issubclass(given, np.generic))
    return original(np.dtype(given).name if theirs else given)
