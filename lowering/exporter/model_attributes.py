"""Attributes as they were before a trace: those of a model, of which a forward() may set some, and replaced ones."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from ..errors import is_user_file

_OF_TORCH = {"_parameters", "_buffers", "_modules", "_flat_weights"}
"""Attributes in which torch keeps weights, and which it replaces itself."""


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute; afterwards the owner has what it had, or no such attribute."""
    had, before = name in vars(owner), getattr(owner, name, None)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def replaced_each(attributes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes, given as owner, name and value, as `replaced` does."""
    with ExitStack() as stack:
        for owner, name, value in attributes:
            stack.enter_context(replaced(owner, name, value))
        yield


@contextmanager
def restored_attributes(model: torch.nn.Module) -> Iterator[None]:
    """Restore attributes of a model at the end, and lists and dicts among them: a state would fail the next trace."""
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    containers = [(v, copy.copy(v)) for _, saved in before for v in saved.values() if isinstance(v, (dict, list, set))]
    try:
        yield
    finally:
        for attributes, saved in before:
            attributes.clear()
            attributes.update(saved)
        for container, content in containers:
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)


def with_listed_weights(model: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a forward() find the weights of a trace also in lists and dicts that the model keeps them in.

    A trace replaces the registered weights. A weight that is read from a list or a dict would become a constant, and
    another one wherever it is read.
    """
    places = list(_listed_weights(model))

    @wraps(forward)
    def with_weights(*arguments: Any) -> Any:
        for container, key, module, name in places:
            container[key] = getattr(module, name)
        return forward(*arguments)

    return with_weights


def _listed_weights(model: torch.nn.Module) -> Iterator[tuple[Any, Any, torch.nn.Module, str]]:
    """Yield each list or dict with a registered weight, the weight's place there, and its module and name."""
    registered = {
        id(tensor): (module, name)
        for module in model.modules()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }
    for module in model.modules():
        for name, container in vars(module).items():
            if name in _OF_TORCH or not isinstance(container, (dict, list)):
                continue
            for key, value in container.items() if isinstance(container, dict) else enumerate(container):
                if isinstance(value, torch.Tensor) and id(value) in registered:
                    yield container, key, *registered[id(value)]


def register_tensors(model: torch.nn.Module) -> None:
    """Make buffers of tensors that are plain attributes: a trace follows writes to buffers only."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)


def module_file(module: object) -> str | None:
    """Return the file of a module, if it has one; `getattr` would import the contents of one that is lazy."""
    file = getattr(module, "__dict__", {}).get("__file__")
    return file if isinstance(file, str) else None


def user_file(module: object) -> Path | None:
    """Return the file of a Python module that belongs to the model, not to torch, Python or this package."""
    file = module_file(module)
    return Path(file) if file is not None and is_user_file(file) else None


def user_modules(model: torch.nn.Module) -> list[Any]:
    """Return the Python modules of the model's classes, and those of other files in their folders."""
    names = {cls.__module__ for part in model.modules() for cls in type(part).__mro__}
    folders = {file.parent for name in names if (file := user_file(sys.modules.get(name))) is not None}
    return [module for module in list(sys.modules.values()) if (f := user_file(module)) and f.parent in folders]
