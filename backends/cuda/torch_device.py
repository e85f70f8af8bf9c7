"""The GPU itself, through torch.cuda.

Tests without a GPU run its settings and its errors only. Written from torch's documentation of CUDA graphs
(https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs) and its source.
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ..interface import LoadError
from .kernels.interface import RecurrenceKernel
from .kernels.nvrtc_kernel import NvrtcKernel, kernel_missing

Result = TypeVar("Result")
_LOG = logging.getLogger(__name__)

_WARM_UPS = 3
"""Runs before a capture. In the first ones libraries choose kernels and allocate work space."""
_BFLOAT16_CUDNN = 91300
"""First release of cuDNN, 9.13, by which torch computes recurrences of bfloat16."""
_NO_MEMORY = ("out of memory", "_OUT_OF_MEMORY", "_STATUS_ALLOC_FAILED")
"""Words of errors that are no OutOfMemoryError: of the driver, of NVRTC, of cuBLAS and of cuDNN."""


class OutOfMemory(RuntimeError):
    """The memory of the device does not suffice."""


def gpu_missing() -> str | None:
    """Return why this process has no NVIDIA GPU; None if it has one."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA: install a build of torch with CUDA"
    if not torch.cuda.is_available():
        return "torch sees no NVIDIA GPU: `nvidia-smi` lists those that the driver sees"
    return None


def gpu_index(setting: str | None, count: int) -> int:
    """Return the index of the GPU that `device` names, among `count` of them; the first if it names none.

    >>> gpu_index("cuda:1", 2), gpu_index(None, 2)
    (1, 0)

    Raises `LoadError`: there is no such GPU.
    """
    match = re.fullmatch(r"cuda:(\d+)", setting or "cuda:0")
    if match is None:
        raise LoadError(f"device: {setting!r} is no GPU; write auto, or cuda:0 for the first one")
    index = int(match[1])
    if index >= count:
        here = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0 only"
        raise LoadError(f"device: there is no {setting} here, but {here}: write device: auto, or one of these")
    return index


def gpu_name(setting: str | None) -> str | None:
    """Return the name of the GPU that `device` names; None if this machine has no GPU.

    Raises `LoadError`: `device` is the name of none, or this machine has fewer.
    """
    if gpu_missing() is not None:
        return None
    return str(torch.cuda.get_device_name(gpu_index(setting, torch.cuda.device_count())))


def _own_kernel(device: torch.device) -> RecurrenceKernel | None:
    """The kernel for recurrent layers on a GPU; None, with a line in the log, where it cannot run."""
    with torch.cuda.device(device):
        missing = kernel_missing(device)
    if missing is None:
        return NvrtcKernel(device.index)
    _LOG.info("recurrent layers run in cuDNN, not in the kernel of neuron_lstm: %s", missing)
    return None


class TorchDevice:
    """One GPU, with a pool of graph memory and a stream: work runs asynchronously, in the order of its enqueuing.

    Each thread has its own current device and stream, so all methods are called in the context of `current`.
    """

    def __init__(self, index: int, *, own_kernel: bool = True) -> None:
        """Use cuDNN for all recurrent layers, unless `own_kernel` is set."""
        self.torch_device = torch.device("cuda", index)
        self.name = str(torch.cuda.get_device_name(index))
        self.stream = torch.cuda.Stream(self.torch_device)
        self._pool = torch.cuda.graph_pool_handle()
        self.kernel = _own_kernel(self.torch_device) if own_kernel else None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the GPU current, then its stream: a stream alone would select the former GPU at its end.

        That would create a context there, which takes some hundred megabytes.
        """
        with torch.cuda.device(self.torch_device), torch.cuda.stream(self.stream):
            yield

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a CPU tensor on the GPU. Raises `OutOfMemory`: it does not fit."""
        with _memory_errors():
            uploaded = tensor.detach().to(self.torch_device)
        self.stream.synchronize()
        return uploaded

    def flatten(self, cell: str, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return copies of one layer's weights in one block, in cuDNN's order: else each call would copy them there."""
        import torch.backends.cudnn.rnn

        flat = [weight.clone() for weight in weights]
        if not _runs_in_cudnn(flat[0]):
            return flat
        w_ih, w_hh = flat[:2]
        hidden = w_hh.shape[0] // {"lstm": 4, "gru": 3}.get(cell, 1)
        projected = w_hh.shape[1] if w_hh.shape[1] != hidden else 0
        mode = torch.backends.cudnn.rnn.get_cudnn_mode(cell.upper())
        with torch.no_grad():
            torch._cudnn_rnn_flatten_weight(
                flat, len(flat), w_ih.shape[1], mode, hidden, projected, 1, batch_first=False, bidirectional=False
            )
        return flat

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return zeros of the GPU, uint8[nbytes], kept apart from the memory of graphs.

        Raises `OutOfMemory`: they do not fit.
        """
        with _memory_errors():
            return torch.zeros(nbytes, dtype=torch.uint8, device=self.torch_device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return page-locked memory of the host, uint8[nbytes], which the GPU copies without waiting.

        It is from torch's own pool of pinned blocks, which knows when a copy is done with a block.
        """
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy between tensors of the GPU or pinned memory; neither may change before it."""
        target.copy_(source, non_blocking=True)

    def warm_up(self, body: Callable[[], Result]) -> Result:
        """Run a function some times before its capture, and wait; returns the result.

        Raises `OutOfMemory`: its values do not fit.
        """
        with _memory_errors(), _without_tf32():
            for _ in range(_WARM_UPS - 1):
                body()
            result = body()
            self.stream.synchronize()
            return result

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record the work of a function as a graph in the pool of this device; returns the graph's launch.

        Each launch enqueues the same work on the same memory. Nothing in `body` may wait for the device, and no tensor
        that it allocates may outlive it.

        Raises `OutOfMemory`: its values do not fit.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the GPU during the capture.
        recording = torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local")
        try:
            with _memory_errors(), _without_tf32(), _without_collections(), recording:
                body()
        except OutOfMemory:
            self._pool = torch.cuda.graph_pool_handle()  # torch may still take the former one for a broken capture
            raise
        except RuntimeError as error:
            raise LoadError(
                f"a call of the program cannot be part of a CUDA graph ({str(error).splitlines()[0]}): package the "
                f"model with this operator in partitioner_config.ops_to_partition, or with another backend"
            ) from error
        return graph.replay

    def synchronize(self) -> None:
        """Wait for the stream."""
        self.stream.synchronize()

    def free_bytes(self) -> int:
        """Return what the driver has free, and what torch holds without using it."""
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        held = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return int(free) + int(held)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Raise `OutOfMemory` for torch's error, also where a broken capture is reported in its place."""
    try:
        yield
    except RuntimeError as error:
        reason = _memory_reason(error)
        if reason is None:
            raise
        raise OutOfMemory(reason) from error


def _memory_reason(error: BaseException | None) -> str | None:
    """The message about memory in a chain of errors; None if there is none.

    No frame of the chain may keep a variable for one of its errors: such a circle would hold the GPU's memory.
    """
    while error is not None:
        if isinstance(error, torch.cuda.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY):
            return str(error).splitlines()[0]
        error = error.__context__
    return None


def _runs_in_cudnn(weight: torch.Tensor) -> bool:
    """Whether torch computes a recurrence of this dtype in cuDNN, by the same conditions."""
    if not torch.cudnn_is_acceptable(weight):
        return False
    if weight.dtype != torch.bfloat16:
        return True
    return (torch.backends.cudnn.version() or 0) >= _BFLOAT16_CUDNN and torch.cuda.get_device_capability() >= (8, 0)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage: pinned memory in it would record the event of its last copy into the graph."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Compute products of float32 in float32. TF32 has ten bits, for an error of 1e-3.

    Graphs keep what was set while they were recorded. torch before 2.9 has other names for the settings; from 2.9 on
    it refuses to read those if a user has set the new ones.
    """
    import torch.backends.cudnn.rnn

    backends: Any = torch.backends
    name, exact = ("fp32_precision", "ieee") if hasattr(backends, "fp32_precision") else ("allow_tf32", False)
    cudnn = [backends.cudnn.conv, backends.cudnn.rnn] if exact else [backends.cudnn]
    settings = [backends.cuda.matmul, *cudnn]
    before = [getattr(setting, name) for setting in settings]
    try:
        for setting in settings:
            setattr(setting, name, exact)
        yield
    finally:
        for setting, value in zip(settings, before):
            setattr(setting, name, value)
