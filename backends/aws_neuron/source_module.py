"""A program in Python's own words, with its tensors, as a module that any compiler can trace.

This file also runs in the interpreter of a compiler that knows neither this package nor its torch. So it imports
nothing but torch (1.13 or later), and keeps to Python 3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class SourceModule(torch.nn.Module):
    """forward(*inputs) -> a tuple of outputs, by the function `forward(tensors, *inputs)` that `source` defines.

    Each of `tensors` is a parameter, under a name without dots; `operators` are the functions that `source` calls.
    """

    def __init__(
        self,
        source: str,
        tensors: Mapping[str, torch.Tensor],
        operators: Mapping[str, Callable[..., Any]],
    ) -> None:
        super().__init__()
        self._names: Sequence[str] = tuple(tensors)
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        namespace = {"torch": torch, **operators}
        exec(compile(source, "<program>", "exec"), namespace)  # noqa: S102 - written by `plain_program.py`
        self._function: Callable[..., tuple[torch.Tensor, ...]] = namespace["forward"]  # type: ignore[assignment]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, in order."""
        return self._function([getattr(self, name) for name in self._names], *inputs)
