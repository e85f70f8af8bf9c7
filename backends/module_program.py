"""A module as a loaded program: the one place that checks inputs and keeps outputs from sharing memory with weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from ..bucketing.padding import storage_ptr
from .signature import Signature

# The first exists since torch 2.4, which warns of the second.
_is_autocasting: Callable[[], bool] = (
    partial(torch.is_autocast_enabled, "cpu") if hasattr(torch, "get_autocast_dtype") else torch.is_autocast_cpu_enabled
)


class ModuleProgram:
    """A loaded program that calls a module of flat inputs and flat outputs.

    `weights` are tensors that the module reads: they live as long as the program, and an output that shares memory
    with one of them is copied, so that callers may modify it. `wake` wakes the module's threads before a call.
    """

    def __init__(
        self,
        signature: Signature,
        module: Callable[..., Sequence[torch.Tensor]],
        weights: Iterable[torch.Tensor] = (),
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._signature, self._module, self._weights = signature, module, tuple(weights)
        self._storages = frozenset(map(storage_ptr, self._weights))
        self.wake = wake

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Run one call. Raises `WrongInput`: the inputs are not those that the program was compiled for."""
        if _is_autocasting():  # of the caller: the program was compiled with dtypes of its own
            with torch.autocast("cpu", enabled=False):
                return self(inputs)
        self._signature.check_inputs(inputs)
        if not torch.is_grad_enabled():  # servers switch gradients off for a whole plan: doing it twice takes time
            return self._run(inputs)
        with torch.no_grad():
            return self._run(inputs)

    def _run(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        outputs = [output.contiguous() for output in self._module(*[tensor.contiguous() for tensor in inputs])]
        held = self._storages
        return [output.detach().clone() if storage_ptr(output) in held else output for output in outputs]
