"""The user's own choice of a bucket: how it is asked, what it may answer, and how a saved trace finds it again."""

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
"""Inputs of any size -> (a list of inputs of the bucket's sizes, the bucket's index as a tensor)."""


def select_bucket(
    kernel: BucketKernel, inputs: Sequence[torch.Tensor], shapes: Sequence[Sequence[Sequence[int | str]]]
) -> tuple[list[torch.Tensor], int]:
    """What the kernel makes of a call, and its bucket. `shapes` are those of each bucket's inputs.

    Raises:
        WrongInput: it found no bucket: it gave back no tensors, or an index without a bucket. Says what was given.
        TypeError: its answer is not a list of tensors and an index.
    """
    answer = kernel(list(inputs))
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(f"the bucket kernel must give (tensors, index), it gave {type(answer).__name__}")
    tensors, index = _checked(*answer)
    given = _words([list(tensor.shape) for tensor in inputs])
    known = "; ".join(f"{place}: {_words(bucket)}" for place, bucket in enumerate(shapes))
    if not tensors:
        raise WrongInput(f"no bucket for {given}: the bucket kernel gave back no tensors. The buckets are {known}")
    if not 0 <= index < len(shapes):
        raise WrongInput(f"no bucket for {given}: the bucket kernel chose {index}. The buckets are {known}")
    return tensors, index


def _checked(tensors: Any, index: Any) -> tuple[list[torch.Tensor], int]:
    if not isinstance(tensors, list | tuple) or not all(isinstance(one, torch.Tensor) for one in tensors):
        raise TypeError(f"the bucket kernel must give a list of tensors first, it gave {tensors!r}")
    if not isinstance(index, int) and not (isinstance(index, torch.Tensor) and index.numel() == 1):
        raise TypeError(f"the bucket kernel must give the bucket's index as a tensor of one number, it gave {index!r}")
    return list(tensors), int(index)


def _words(shapes: Sequence[Sequence[int | str]]) -> str:
    return " and ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)


@dataclass(frozen=True)
class FactoryFunction:
    """A function that a factory made, and how a file finds it again."""

    function: Any
    serialize: Callable[[], str]


def call_factory(factory: Any) -> FactoryFunction:
    """What a factory makes.

    Raises:
        TypeError: it is none, or makes something else than a function.
    """
    function = factory() if callable(factory) else None
    if not callable(function):
        raise TypeError(
            f"a bucket kernel and a preprocessor are given as a function that returns the function: {factory!r} "
            f"{'returns ' + repr(function) if callable(factory) else 'is none'}"
        )
    return FactoryFunction(function, lambda: _saved(factory, function))


def _saved(factory: Callable[[], Any], made: Any) -> str:
    """How a kernel is written into a file: a scripted one as it is, a plain one as the import path of its factory.

    Raises:
        ValueError: it is plain, and its factory cannot be imported where the file is loaded.
    """
    if isinstance(made, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
        buffer = io.BytesIO()
        torch.jit.save(made, buffer)
        return _SCRIPT + base64.b64encode(buffer.getvalue()).decode("ascii")
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module == "__main__" or "<" in name or _imported(module, name) is not factory:
        raise ValueError(
            f"{name or factory!r} cannot be imported where the trace is loaded: give torch.jit.script(...) of the "
            "function it returns, or put it at the top of a module that can be imported"
        )
    return f"{_IMPORT}{module}:{name}"


def restore_function(text: str) -> FactoryFunction:
    """The way back.

    Raises:
        LoadError: the factory's module is not here, or what was scripted cannot be read.
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
        raise LoadError(f"the traced file needs {name} of the module {module}, which is not here")
    return FactoryFunction(factory(), lambda: text)


def _imported(module: str, name: str) -> Any:
    try:
        found = importlib.import_module(module)
    except ImportError:
        return None
    return getattr(found, name, None)
