"""Bucket kernels: the user's choice of a bucket, called, checked, and saved with a trace."""

from __future__ import annotations

import base64
import importlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..backends.interface import LoadError
from ..backends.signature import WrongInput

_SCRIPT, _IMPORT = "script:", "import:"

BucketKernel = Callable[[list[torch.Tensor]], Any]
"""Function: inputs of any size -> (inputs of the bucket's sizes, the bucket's index as a tensor)."""


def select_bucket(
    kernel: BucketKernel, inputs: Sequence[torch.Tensor], shapes: Sequence[Sequence[Sequence[int | str]]]
) -> tuple[list[torch.Tensor], int]:
    """Call the bucket kernel; return its tensors and the bucket's index.

    `shapes` are the shapes of the inputs, for each bucket.

    Raises `WrongInput`: it returns no tensors, or an index without a bucket; names the shapes.
    Raises `TypeError`: it does not return a list of tensors and an index.
    """
    result = kernel(list(inputs))
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"the bucket kernel must return (tensors, index), it returned {type(result).__name__}")
    tensors, index = _checked(*result)
    actual = _format_shapes([list(tensor.shape) for tensor in inputs])
    known = "; ".join(f"{number}: {_format_shapes(bucket)}" for number, bucket in enumerate(shapes))
    if not tensors:
        raise WrongInput(f"no bucket for {actual}: the bucket kernel returned no tensors. The buckets are {known}")
    if not 0 <= index < len(shapes):
        raise WrongInput(f"no bucket for {actual}: the bucket kernel chose {index}. The buckets are {known}")
    return tensors, index


def _checked(tensors: Any, index: Any) -> tuple[list[torch.Tensor], int]:
    if not isinstance(tensors, list | tuple) or not all(isinstance(one, torch.Tensor) for one in tensors):
        raise TypeError(f"the bucket kernel must return a list of tensors first, it returned {tensors!r}")
    if not isinstance(index, int) and not (isinstance(index, torch.Tensor) and index.numel() == 1):
        raise TypeError(f"the bucket kernel must return the index as a tensor of one number, it returned {index!r}")
    return list(tensors), int(index)


def _format_shapes(shapes: Sequence[Sequence[int | str]]) -> str:
    return " and ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)


@dataclass(frozen=True)
class FactoryFunction:
    """A function returned by a factory, and its serialisation for a saved trace."""

    function: Any
    serialize: Callable[[], str]


def call_factory(factory: Any) -> FactoryFunction:
    """Call a factory of the user. Raises `TypeError`: it cannot be called, or does not return a function."""
    function = factory() if callable(factory) else None
    if not callable(function):
        raise TypeError(
            f"a bucket kernel and a preprocessor are given as a function that returns the function: {factory!r} "
            f"{'returns ' + repr(function) if callable(factory) else 'is not a function'}"
        )
    return FactoryFunction(function, lambda: _serialized(factory, function))


def _serialized(factory: Callable[[], Any], function: Any) -> str:
    """Serialise a function: a scripted one as TorchScript, any other as the import path of its factory."""
    if isinstance(function, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
        buffer = io.BytesIO()
        torch.jit.save(function, buffer)
        return _SCRIPT + base64.b64encode(buffer.getvalue()).decode("ascii")
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module == "__main__" or "<" in name or _imported(module, name) is not factory:
        raise ValueError(
            f"{name or factory!r} cannot be imported where the trace is loaded: give torch.jit.script(...) of the "
            "function it returns, or define it at the top level of a module that can be imported"
        )
    return f"{_IMPORT}{module}:{name}"


def restore_function(text: str) -> FactoryFunction:
    """Restore a function from its serialisation.

    Raises `LoadError`: the factory cannot be imported, or the TorchScript cannot be read.
    """
    try:
        if text.startswith(_SCRIPT):
            script = torch.jit.load(io.BytesIO(base64.b64decode(text.removeprefix(_SCRIPT))))
            return FactoryFunction(script, lambda: text)
        module, _, name = text.removeprefix(_IMPORT).partition(":")
        factory = _imported(module, name)
    except (RuntimeError, ValueError) as error:
        raise LoadError(f"the bucket kernel in the traced file cannot be read: {error}") from error
    if factory is None:
        raise LoadError(f"the traced file needs {name} of the module {module}, which cannot be imported here")
    return FactoryFunction(factory(), lambda: text)


def _imported(module: str, name: str) -> Any:
    try:
        found = importlib.import_module(module)
    except ImportError:
        return None
    return getattr(found, name, None)
