"""Module of a program in Python source and of its tensors, for any compiler that traces.

This file also runs in the interpreter of a compiler, which has neither this package nor its release of torch. So it
imports only torch (1.13 or later), and works with Python 3.8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class SourceModule(torch.nn.Module):
    """Module that calls the function of its inputs that `program(tensors)` returns, which `source` defines.

    Each of `tensors` is a parameter, under a name without dots. `operators` are the functions that `source` calls.
    """

    def __init__(
        self, source: str, tensors: Mapping[str, torch.Tensor], operators: Mapping[str, Callable[..., Any]]
    ) -> None:
        super().__init__()
        self._names: Sequence[str] = tuple(tensors)
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        namespace: dict[str, Any] = {"torch": torch, "math": math, **operators}
        exec(compile(source, "<program>", "exec"), namespace)  # noqa: S102 - written by `source_export.py`
        self._program: Callable[..., Callable[..., tuple[torch.Tensor, ...]]] = namespace["program"]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs in order."""
        tensors = {name: getattr(self, name) for name in self._names}
        device = next((tensor.device for tensor in (*inputs, *tensors.values())), torch.device("cpu"))
        return self._program({**tensors, "device": device})(*inputs)
