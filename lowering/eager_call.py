"""Calls of the user's model in eager mode, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .exporter.plain_outputs import plain_outputs


def call_eagerly(model: torch.nn.Module, arguments: Mapping[str, Any]) -> Any:
    """Call a model without gradients; a `.cuda()` in its code leaves the tensor on the CPU."""
    with torch.no_grad(), _StaysOnCpu():
        return plain_outputs(model(**arguments))


class _StaysOnCpu(TorchFunctionMode):
    """Mode in which `tensor.cuda()` returns the tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*args, **(kwargs or {}))
