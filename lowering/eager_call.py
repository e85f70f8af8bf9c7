"""Calls of the user's model in eager mode, on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .exporter.plain_outputs import plain_outputs


def call_eagerly(model: torch.nn.Module, arguments: Mapping[str, Any]) -> Any:
    """Call a model without gradients; a `.cuda()` in its code leaves the tensor on the CPU."""
    with torch.no_grad(), _StaysOnCpu():
        return plain_outputs(model(**arguments))


def copy_of(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy where one can be made: a call may change the model, which is still to be traced."""
    try:
        return copy.deepcopy(model)
    except Exception:  # noqa: BLE001 - whatever a module of the user's own raises when it is copied
        return model


class _StaysOnCpu(TorchFunctionMode):
    """Mode in which `tensor.cuda()` returns the tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*args, **(kwargs or {}))
