"""The kernel of `recurrence.cu`, compiled by NVRTC when its sizes are first seen.

Its geometry divides a recurrent layer among the blocks of a GPU. Both NVRTC and the package cuda-bindings come with the
CUDA builds of torch from 2.10 on.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .interface import KernelError, LayerCall

WIDEST = 256
"""Most hidden units: the weights of 32 units fill the registers of a block, and 8 are a cluster."""
SLICES = 16
"""Lanes of a unit, as in `recurrence.cu`."""

_CLUSTERS = (1, 2, 4, 8)
_FEWEST_UNITS = 8
"""Units of a block of a small layer: a smaller block would not be faster."""
_MOST_UNITS = 32
_ROWS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Geometry:
    """Sizes with which the kernel is compiled."""

    units: int
    """Hidden units of a block."""
    cluster: int
    """Blocks that compute the same rows."""
    rows: int
    """Rows of a cluster."""

    @property
    def rows_at_once(self) -> int:
        """Rows whose sums a lane holds at once."""
        return min(self.rows, 4)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.units * SLICES


def geometry(hidden: int, batch: int, directions: int, multiprocessors: int) -> Geometry:
    """Choose the fewest rows of a cluster with which all clusters of a batch run at once, or else 8.

    A cluster that computes one row more takes longer for each step. Clusters beyond those that run at once wait. How
    many run at once is counted by multiprocessors: those that make no whole cluster in their part of the GPU are not
    known.

    >>> geometry(hidden=256, batch=32, directions=1, multiprocessors=132)
    Geometry(units=32, cluster=8, rows=2)
    >>> geometry(hidden=100, batch=1, directions=2, multiprocessors=132)
    Geometry(units=14, cluster=8, rows=1)
    """
    units = max(_FEWEST_UNITS, 2 * -(-hidden // (2 * _CLUSTERS[-1])))  # an even number: two units are a warp
    cluster = next(size for size in _CLUSTERS if size * units >= hidden)
    at_once = multiprocessors * (_MOST_UNITS // units) // cluster
    rows = next((rows for rows in _ROWS if -(-batch // rows) * directions <= at_once), _ROWS[-1])
    return Geometry(units, cluster, rows)


_SOURCE = Path(__file__).with_name("recurrence.cu")
_LEAST_CAPABILITY = (9, 0)
"""Compute capability from which on blocks form clusters, which send values to each other."""
_TYPES = (*[ctypes.c_void_p] * 9, ctypes.c_int, ctypes.c_int)


class NvrtcKernel:
    """A `RecurrenceKernel` on one GPU."""

    def __init__(self, index: int) -> None:
        """`index` is that of a GPU for which `kernel_missing` returns None."""
        properties = torch.cuda.get_device_properties(index)
        self._index, self._multiprocessors = index, properties.multi_processor_count
        self._architecture = f"sm_{properties.major}{properties.minor}"

    def computes(self, hidden: int) -> bool:
        """Whether the recurrent weights fit into the registers of a cluster."""
        return hidden <= WIDEST

    def enqueue(self, call: LayerCall) -> None:
        """Enqueue a layer on the current stream. Raises `KernelError`: CUDA refused it."""
        batch, time, directions, _ = call.gates.shape
        hidden = call.w_hh.shape[2]
        sizes = geometry(hidden, batch, directions, self._multiprocessors)
        function = _function(self._index, self._architecture, call.cell, hidden, sizes)
        tensors = (
            call.gates, call.w_hh, call.b_hn, call.lengths, call.h_0, call.c_0, call.y, call.h_n, call.c_n
        )  # fmt: skip
        blocks = sizes.cluster, -(-batch // sizes.rows), directions
        stream = torch.cuda.current_stream().cuda_stream
        arguments = ((*(0 if one is None else one.data_ptr() for one in tensors), batch, time), _TYPES)
        _check(_driver().cuLaunchKernel(function, *blocks, sizes.threads, 1, 1, 0, stream, arguments, 0))


def kernel_missing(device: torch.device) -> str | None:
    """Return why the current GPU cannot run the kernel; None if it can, as a trial has shown."""
    if (reason := too_old(device)) is not None:
        return reason
    try:
        NvrtcKernel(device.index).enqueue(_trial(device))
        torch.cuda.current_stream().synchronize()
    except KernelError as error:
        return str(error)
    except ImportError as error:
        return f"it needs the package cuda-bindings: {error}"
    except Exception as error:  # noqa: BLE001 - libraries that cannot be loaded raise other errors
        return f"a trial failed with {type(error).__name__}: {error}"
    return None


def too_old(device: torch.device) -> str | None:
    """Return why a GPU has no clusters of blocks; None if it has."""
    major, minor = torch.cuda.get_device_capability(device.index)
    if (major, minor) < _LEAST_CAPABILITY:
        return f"the GPU has compute capability {major}.{minor}, and the kernel needs 9.0 or higher"
    return None


def _trial(device: torch.device) -> LayerCall:
    """One row of the widest LSTM, which takes the largest cluster of the largest blocks."""

    def zeros(*sizes: int) -> Tensor:
        return torch.zeros(sizes, device=device, dtype=torch.float32)

    gates, w_hh = zeros(1, 1, 1, 4 * WIDEST), zeros(1, 4 * WIDEST, WIDEST)
    h_0, c_0, y, h_n, c_n = (zeros(1, 1, WIDEST) for _ in range(5))
    return LayerCall("lstm", gates, w_hh, None, None, h_0, c_0, y, h_n, c_n)


def _driver() -> Any:
    return import_module("cuda.bindings.driver")


def _nvrtc() -> Any:
    return import_module("cuda.bindings.nvrtc")


@cache
def _function(index: int, architecture: str, cell: str, hidden: int, sizes: Geometry) -> Any:
    """The kernel for these sizes, loaded on a GPU, where it stays."""
    defined = {
        "CELL": cell.upper(),
        "HIDDEN": hidden,
        "PADDED": -(-hidden // 64) * 64,
        "UNITS": sizes.units,
        "CLUSTER": sizes.cluster,
        "ROWS": sizes.rows,
        "ROWS_AT_ONCE": sizes.rows_at_once,
    }
    options = (f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{k}={v}" for k, v in defined.items()))
    (module,) = _check(_driver().cuModuleLoadData(_cubin(tuple(options))))
    (function,) = _check(_driver().cuModuleGetFunction(module, b"recurrence"))
    return function


@cache
def _cubin(options: tuple[str, ...]) -> bytes:
    nvrtc = _nvrtc()
    (program,) = _check(nvrtc.nvrtcCreateProgram(_SOURCE.read_bytes(), b"recurrence.cu", 0, [], []))
    try:
        given = [option.encode() for option in options]
        try:
            _check(nvrtc.nvrtcCompileProgram(program, len(given), given))
        except KernelError as error:
            raise KernelError(f"{error}: {_compiler_log(program)}") from error
        (nbytes,) = _check(nvrtc.nvrtcGetCUBINSize(program))
        cubin = bytes(nbytes)
        _check(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _compiler_log(program: Any) -> str:
    (nbytes,) = _check(_nvrtc().nvrtcGetProgramLogSize(program))
    log = bytes(nbytes)
    _check(_nvrtc().nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace")


def _check(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an answer of CUDA, after its error code.

    Raises `KernelError`: the code is one of an error.
    """
    code, *values = answer
    if int(code):
        raise KernelError(f"{code.name}: the kernel for recurrent layers cannot be compiled or launched on this GPU")
    return tuple(values)
