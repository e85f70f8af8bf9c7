"""Attributes of a model, as they were before a trace: a forward() may set some."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def restored_attributes(model: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of a model and of its modules at the end, and the lists and dicts among them.

    A value that a trace leaves in a model, such as a state on `self`, would fail in the next trace.
    """
    before = [(vars(module), dict(vars(module)), _containers(module)) for module in model.modules()]
    try:
        yield
    finally:
        for attributes, saved, containers in before:
            attributes.clear()
            attributes.update(saved)
            for name, content in containers.items():
                _fill(attributes[name], content)


def register_tensors(model: torch.nn.Module) -> None:
    """Make buffers of tensors that are plain attributes: a trace follows writes to buffers only."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)


def _containers(module: torch.nn.Module) -> dict[str, Any]:
    return {name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, (dict, list, set))}


def _fill(container: dict[Any, Any] | list[Any] | set[Any], content: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)
