"""A GPU's double on the CPU.

It runs programs, holds captures to the rules of CUDA graphs, and can run out of memory.

Work runs as late as it may: copies and launches wait until somebody synchronizes. Memory that nobody has written holds
garbage. A tensor that a program makes on another device is not noticed, since the device is the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from weakref import finalize, ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchserve_neuron_lstm.backends.cuda.kernels.interface import RecurrenceKernel
from torchserve_neuron_lstm.backends.cuda.torch_device import OutOfMemory, Result, TorchDevice
from torchserve_neuron_lstm.bucketing.padding import storage_ptr

_GARBAGE = 0x7F
"""Byte of memory that was not written: near 1e38 as floats, outside of any table as integers."""


class RuleBroken(AssertionError):
    """Work that a CUDA graph could not record, or would not repeat."""


class _Rules(TorchDispatchMode):
    """Checks of every call of a function on the device."""

    def __init__(self, device: GraphDevice, beside: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._device, self._beside = device, beside
        self.own: set[int] = set()
        """Memory that the function has allocated, which it may read."""
        self.nbytes = 0
        self._made: list[ref[torch.Tensor]] = []
        self.calls: list[tuple[str, tuple[tuple[int, ...], ...]]] = []

    def living(self) -> list[torch.Tensor]:
        """Return the tensors that the function has made, and that somebody still holds."""
        return [tensor for made in self._made if (tensor := made()) is not None]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        self._check_values(func, args, given)
        for tensor in _tensors((args, given)):
            if storage_ptr(tensor) not in self.own | self._device.readable and tensor.numel():
                raise RuleBroken(f"{func} reads memory that is not on the device: {tuple(tensor.shape)}")
        found = func(*args, **given)
        for tensor in _tensors(found):
            address = storage_ptr(tensor)
            if address in {storage_ptr(one) for one in _tensors((args, given))} or address in self._device.known:
                continue  # a view, or an input
            self._made.append(ref(tensor))
            self.own.add(address)
            self.nbytes += tensor.untyped_storage().nbytes()
            self._device.reserve(self._beside + self.nbytes)
        self.calls.append((str(func), tuple(tuple(tensor.shape) for tensor in _tensors(found))))
        return found

    def _check_values(self, func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> None:
        masks = [index.dtype == torch.bool for index in _tensors(args[1:2])] if "index.Tensor" in str(func) else []
        dynamic = torch.Tag.dynamic_output_shape in func.tags and ("index.Tensor" not in str(func) or any(masks))
        dynamic = dynamic and given.get("output_size") is None
        checks = "_linalg_check_errors" in str(func)
        if dynamic or checks or torch.Tag.data_dependent_output in func.tags:
            raise RuleBroken(f"{func} waits for a value on the device")


class GraphDevice(TorchDevice):
    def __init__(self, nbytes: int = 1 << 40, kernel: RecurrenceKernel | None = None) -> None:
        self.name = "the double of a GPU"
        self.torch_device = torch.device("cpu")
        self.kernel = kernel
        self.known: set[int] = set()
        """Addresses of memory that lives as long as the device's user holds it."""
        self._left: set[int] = set()
        """Addresses of weights that were derived before memory ran out."""
        self.used, self._nbytes = 0, nbytes
        self.pool = 0
        """Bytes of the graphs' memory: the most that one of them takes."""
        self.uploads, self.flattened, self.launches, self.waits = 0, 0, 0, 0
        self.to_host, self.captured = 0, list[int]()
        self._pinned: set[int] = set()
        self._alive: list[torch.Tensor] = []
        self._queue: list[Callable[[], object]] = []
        self._is_capturing = False
        self._threads: set[int] = set()
        """Threads in which the device is current."""

    @property
    def readable(self) -> set[int]:
        """Addresses that any work may read."""
        return self.known | self._left

    @contextmanager
    def current(self) -> Iterator[None]:
        thread = get_ident()
        if self._threads:
            raise RuleBroken("two threads use one stream, or one thread twice")
        self._threads.add(thread)
        try:
            yield
        finally:
            self._threads.discard(thread)

    def _check_current(self) -> None:
        if get_ident() not in self._threads:
            raise RuleBroken("another device is the current one of this thread")

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        self._check_current()
        self.uploads += 1
        return self._keep(tensor.detach().clone())

    def flatten(self, cell: str, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        self._refuse_in_capture("copies weights")
        self.flattened += 1
        return [weight.clone() for weight in weights]

    def allocate(self, nbytes: int) -> torch.Tensor:
        self._check_current()
        self._refuse_in_capture("allocates memory that is not the graphs'")
        return self._keep(torch.full((nbytes,), _GARBAGE, dtype=torch.uint8))

    def pinned(self, nbytes: int) -> torch.Tensor:
        self._refuse_in_capture("allocates pinned memory")
        memory = torch.full((nbytes,), _GARBAGE, dtype=torch.uint8)
        self._pinned.add(storage_ptr(memory))
        self._alive.append(memory)
        return memory

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._check_current()
        for tensor in (target, source):
            if storage_ptr(tensor) not in self.known | self._pinned:
                raise RuleBroken("a copy of memory that is neither pinned nor the device's")
        if target.shape != source.shape or not (target.is_contiguous() and source.is_contiguous()):
            raise RuleBroken(f"one copy moves one block, not {tuple(source.shape)} to {tuple(target.shape)}")
        self.to_host += storage_ptr(target) in self._pinned
        self._queue.append(lambda: target.copy_(source))

    def warm_up(self, body: Callable[[], Result]) -> Result:
        self._check_current()
        self.synchronize()
        with _Rules(self, beside=self.pool) as rules:
            try:
                result = body()
            except OutOfMemory:
                self._left.update(map(storage_ptr, rules.living()))
                raise
            for tensor in rules.living():  # what was derived from weights stays
                self._keep(tensor)
        return result

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        self._check_current()
        self.synchronize()
        self._is_capturing = True
        try:
            with _Rules(self) as recorded:
                body()
        finally:
            self._is_capturing = False
        if living := recorded.living():
            raise RuleBroken(f"{len(living)} tensors of the graphs' memory outlive their capture")
        self.pool = max(self.pool, recorded.nbytes)
        self.captured.append(recorded.nbytes)

        def replay() -> None:
            with _Rules(self) as rules:
                body()
            if rules.calls != recorded.calls:
                raise RuleBroken("the work depends on what the buffers hold")

        def launch() -> None:
            self._check_current()
            self.launches += 1
            self._queue.append(replay)

        return launch

    def synchronize(self) -> None:
        self._refuse_in_capture("waits for the device")
        self.waits += 1
        queue, self._queue = self._queue, []
        for work in queue:
            work()

    def free_bytes(self) -> int:
        return self._nbytes - self.used - self.pool

    def reserve(self, nbytes: int) -> None:
        """Raise if so many bytes of a graph, or of a run beside the graphs, do not fit beside what is used."""
        if self.used + max(nbytes, self.pool) > self._nbytes:
            raise OutOfMemory(f"{nbytes} bytes of a graph beside {self.used}")

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        address, nbytes = storage_ptr(tensor), tensor.untyped_storage().nbytes()
        if address in self.known:
            return tensor
        if self.used + nbytes + self.pool > self._nbytes:
            raise OutOfMemory(f"{tensor.numel()} elements beside {self.used} bytes")
        self.used += nbytes
        self.known.add(address)
        finalize(tensor, self._free, address, nbytes)
        return tensor

    def _free(self, address: int, nbytes: int) -> None:
        self.known.discard(address)
        self.used -= nbytes

    def _refuse_in_capture(self, what: str) -> None:
        if self._is_capturing:
            raise RuleBroken(f"a captured function {what}")


def _tensors(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
