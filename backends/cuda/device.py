"""Interface of a GPU, as the capture and the replay of graphs need it.

`torch_device.py` is the real one. Everything else in this folder knows this interface only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch

from .kernels.interface import RecurrenceKernel

Result = TypeVar("Result")


class OutOfMemory(RuntimeError):
    """The memory of the device does not suffice."""


class Device(Protocol):
    """A device with one stream: work runs asynchronously, in the order in which it was enqueued.

    Each thread has its own current device and stream, so all methods are called in the context of `current`.
    """

    name: str
    """Name for people, e.g. NVIDIA H100 80GB HBM3."""
    torch_device: torch.device
    kernel: RecurrenceKernel | None
    """Kernel of this project for recurrent layers; None: the device's own layers compute them."""

    def current(self) -> AbstractContextManager[None]:
        """Make the device and its stream the current ones of this thread."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a CPU tensor on the device. Raises `OutOfMemory`: it does not fit."""

    def flatten(self, cell: str, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return copies of one layer's weights in one block, as the device's layer reads them."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return memory of the device, uint8[nbytes], that is kept apart from the memory of graphs.

        Raises `OutOfMemory`: it does not fit.
        """

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return page-locked memory of the host, uint8[nbytes], which the device copies without waiting."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy between tensors of the device or pinned memory; neither may change before it."""

    def warm_up(self, body: Callable[[], Result]) -> tuple[Result, int]:
        """Run a function before its capture, and wait; returns its result and the most bytes it took.

        Raises `OutOfMemory`: its values do not fit.
        """

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record the work of a function as a graph, whose memory all graphs share; returns the graph's launch.

        Each launch enqueues the same work on the same memory. Nothing in `body` may wait for the device, and no tensor
        that it allocates may outlive it.

        Raises `OutOfMemory`: its values do not fit.
        """

    def synchronize(self) -> None:
        """Wait until all enqueued work has run."""

    def free_bytes(self) -> int:
        """Return the memory of the device that is free."""
