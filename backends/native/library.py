"""Bindings of the recurrent library: its threads, and layers with their packed weights."""

from __future__ import annotations

import ctypes
import io
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch

from .. import target_machine
from ..interface import LoadError
from .instruction_sets import fastest_library
from .packing import SUMS, has_projection, in_huge_pages, pack_linear, pack_recurrence

_CELLS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_NO_MEMORY, _NO_SUCH_ID = 1, 3


class RecurrentLibrary:
    """A loaded recurrent library."""

    def __init__(self, file: Path) -> None:
        """Map the file. Raises `LoadError`: it cannot be mapped, or is another library."""
        try:
            _check_complete(file)
            self.code = ctypes.CDLL(str(file.absolute()))  # a bare name would be searched for in other directories
            self.run = self.code.recurrence_run_batch
            self._declare_types()
            self.lanes = int(self.code.recurrence_lanes())
            self.weights = int(self.code.recurrence_weights())
            self.linear_block = int(self.code.recurrence_product_block())
        except (OSError, AttributeError) as error:
            raise LoadError(
                f"{file} cannot be loaded: {error}. Package the model on a machine whose system and compiler are no "
                f"newer than this host's, or with backend: onnxruntime"
            ) from error

    def _declare_types(self) -> None:
        """Declare the types of the functions, for ctypes. Raises `AttributeError`: one is missing."""
        code = self.code
        code.recurrence_open_pool.restype = code.recurrence_open_stack.restype = _POINTER
        code.recurrence_open_stack.argtypes = [_POINTER, ctypes.c_int, *[_SIZE] * 5, _POINTER]
        code.recurrence_close_pool.argtypes = code.recurrence_close_stack.argtypes = [_POINTER]
        code.recurrence_wake_pool.argtypes = [_POINTER]
        code.recurrence_wake_pool.restype = None
        code.recurrence_multiply_table.argtypes = [_POINTER, _POINTER, _SIZE]
        self.run.argtypes = [
            *(_POINTER, _SIZE, _SIZE, _POINTER),  # the stack, rows, steps, lengths
            *(_POINTER, _SIZE),  # ids, rows of their table
            *(_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),  # x or the table, strides of x or of ids, h_0, c_0
            *(_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),  # y with its strides, h_n, c_n
        ]
        code.recurrence_product.argtypes = [
            *(_POINTER, _SIZE, _SIZE, _POINTER, _POINTER),  # the pool, inputs, outputs, weights, biases
            *(_SIZE, _SIZE, _POINTER),  # rows, steps, lengths
            *(_POINTER, _SIZE, _SIZE, _POINTER, _SIZE, _SIZE),  # x with its strides, y with its
        ]

    def interleaved_gates(self, cell: str) -> int:
        """Return the number of gates whose weights are interleaved."""
        return int(self.code.recurrence_gates_at_once(_CELLS[cell]))


def _check_complete(file: Path) -> None:
    """Check that a library is not truncated.

    The loader would map it, and reading beyond its end kills the process.

    Raises `OSError`: the table of sections, which the linker writes last, is missing.
    """
    with file.open("rb") as library:
        header = library.read(64)
        if len(header) < 64:
            raise OSError("it is truncated: no header")
        (table,) = struct.unpack_from("<Q", header, 40)
        size, count = struct.unpack_from("<HH", header, 58)
        there = library.seek(0, io.SEEK_END)
    if there < table + size * count:
        raise OSError(f"it is truncated: {there} of {table + size * count} bytes are there")


class ThreadPool:
    """Threads that compute together, including the caller's. They end with the object. A fork has only its own."""

    def __init__(self, library: RecurrentLibrary, threads: int) -> None:
        """Start the threads. Raises `LoadError`: the system does not allow more threads, or is out of memory."""
        self.library = library
        self.handle = library.code.recurrence_open_pool(threads)
        if self.handle is None:
            raise LoadError(
                f"the system cannot start {threads} threads: raise its limit (ulimit -u, or the container's limit of "
                f"processes or of memory), or set fewer threads in the configuration"
            )
        # Not at exit: another thread may still be computing then, and all threads end with the process.
        weakref.finalize(self, library.code.recurrence_close_pool, self.handle).atexit = False

    def wake(self) -> None:
        """Wake the threads that sleep, because a call follows soon."""
        self.library.code.recurrence_wake_pool(self.handle)


def open_pool(directory: Path, threads: int) -> ThreadPool:
    """Open the library for this processor, with its threads. Raises `LoadError`: it cannot run here."""
    name = fastest_library(directory)
    with target_machine.executable_copy(directory, (name,)) as mapped:
        return ThreadPool(RecurrentLibrary(mapped / name), threads)


class LayerStack:
    """Layers of one cell, stacked as in `nn.LSTM`, `nn.GRU` and `nn.RNN`.

    Their states h have P units: those of the projection of an LSTM, else H.
    """

    def __init__(
        self, pool: ThreadPool, cell: str, weights: Sequence[torch.Tensor], layers: int, directions: int
    ) -> None:
        """Pack the flat weights of an `nn.LSTM`, `nn.GRU` or `nn.RNN`. Raises `MemoryError`: out of memory."""
        library, each = pool.library, len(weights) // (layers * directions)
        parts = [
            part
            for first in range(0, len(weights), each)
            for part in pack_recurrence(
                cell, weights[first : first + each], library.lanes, library.interleaved_gates(cell), library.weights
            )
        ]
        packed = in_huge_pages(parts)
        w_ih, w_hh, *others = weights[:each]
        self._outputs = w_hh.shape[1]
        projects = has_projection(weights[:each])
        self._hidden = others[-1].shape[1] if projects else self._outputs
        self.kept = (pool, packed)  # the library reads them by address
        self.cell, self.width = cell, directions * self._outputs
        self._library, self._states, self._directions = library, layers * directions, directions
        addresses = (ctypes.c_void_p * len(packed))(*(tensor.data_ptr() for tensor in packed))
        sizes = (layers, directions, w_ih.shape[1], self._hidden, self._outputs if projects else 0)
        self.handle = library.code.recurrence_open_stack(pool.handle, _CELLS[cell], *sizes, ctypes.addressof(addresses))
        if self.handle is None:
            raise MemoryError(f"out of memory for {layers} recurrent layers of {self._hidden} hidden units")
        self._run = library.run
        weakref.finalize(self, library.code.recurrence_close_stack, self.handle).atexit = False  # as for a pool

    def multiply_table(self, table: torch.Tensor, most_bytes: int) -> bool:
        """Multiply each row of `table[N, F]` by the first layer's W_ih, once for all calls with this table.

        Returns whether it was done: the sums, S x H floats for a row and direction, take `most_bytes` at most.

        Raises `MemoryError`: out of memory.
        """
        library = self._library
        padded = -(-self._hidden // library.lanes) * library.lanes
        size = 4 * len(table) * self._directions * SUMS[self.cell] * padded
        if not 0 < size <= most_bytes:
            return False
        if library.code.recurrence_multiply_table(self.handle, table.data_ptr(), len(table)):
            raise MemoryError(f"out of memory for the sums of a table of {len(table)} rows: {size / 2**20:.0f} MiB")
        return True

    def run(
        self,
        x: torch.Tensor,
        lengths: torch.Tensor,
        h_0: torch.Tensor | None,
        c_0: torch.Tensor | None,
        *,
        table: torch.Tensor | None = None,
        outputs: bool = True,
        time_major: bool = False,
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """Compute `y[B, T, D*P]`, `h_n` and `c_n` from `x[B, T, F]`.

        With `table[N, F]`, x are ids [B, T] of its rows. It is the one of `multiply_table`, if that was called. For
        cells without a cell state `c_n` is `h_n`.

        All are float32, but for ids int64; `lengths` are int64[B] of 0 to T; states are contiguous, h [L*D, B, P] and
        c [L*D, B, H], or None for zeros. Without `outputs`, y is None. With `time_major`, the memory layout of y is
        [T, B, D*P].

        Raises `ValueError`: a length is not within 0 to T.
        Raises `IndexError`: an id before a row's end is not that of a row of the table.
        Raises `MemoryError`: out of memory.
        """
        rows, steps, lengths = x.shape[0], x.shape[1], lengths.contiguous()
        y = _empty_outputs(rows, steps, self.width, time_major=time_major) if outputs else None
        h_n = torch.empty(self._states, rows, self._outputs, dtype=torch.float32)
        c_n = torch.empty(self._states, rows, self._hidden, dtype=h_n.dtype) if self.cell == "lstm" else h_n
        ids = (None, 0) if table is None else (x.data_ptr(), table.shape[0])  # `len` takes longer
        status = self._run(
            *(self.handle, rows, steps, lengths.data_ptr()),
            *ids,
            *((x if table is None else table).data_ptr(), x.stride(0), x.stride(1), _address(h_0), _address(c_0)),
            *((None, 0, 0) if y is None else (y.data_ptr(), y.stride(0), y.stride(1))),
            *(h_n.data_ptr(), c_n.data_ptr()),
        )
        if status == _NO_MEMORY:
            raise MemoryError(f"out of memory for recurrences over {rows} x {steps} timesteps")
        if status == _NO_SUCH_ID:
            raise IndexError(f"ids must be within 0 to {0 if table is None else len(table) - 1}")
        if status:
            raise ValueError(f"lengths must be within 0 to {steps}, got {lengths.tolist()}")
        return y, h_n, c_n


def _empty_outputs(rows: int, steps: int, width: int, *, time_major: bool) -> torch.Tensor:
    """Return [rows, steps, width]. Its dtype is named: the user's code may have set another default of torch."""
    if time_major:
        return torch.empty(steps, rows, width, dtype=torch.float32).transpose(0, 1)
    return torch.empty(rows, steps, width, dtype=torch.float32)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class LinearLayer:
    """A linear layer."""

    def __init__(self, pool: ThreadPool, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """A layer with torch's `weight[O, K]` and `bias[O]`. Raises `MemoryError`: out of memory."""
        self.pool = pool
        self.outputs, self.inputs = weight.shape
        self.packed = in_huge_pages([*pack_linear(weight, bias, pool.library.linear_block)])
        self._run = pool.library.code.recurrence_product

    def run(self, x: torch.Tensor, lengths: torch.Tensor | None, *, time_major: bool = False) -> torch.Tensor:
        """Compute `y[B, T, O]` from a float32 `x[B, T, K]`.

        With `time_major`, the memory layout of y is [T, B, O]. `lengths` are int64[B] if x is zero after each row's
        length, which is then skipped; else None.

        Raises `MemoryError`: out of memory.
        """
        rows, steps = x.shape[0], x.shape[1]
        lengths = None if lengths is None else lengths.contiguous()
        y = _empty_outputs(rows, steps, self.outputs, time_major=time_major)
        weights, biases = self.packed
        status = self._run(
            *(self.pool.handle, self.inputs, self.outputs, weights.data_ptr(), biases.data_ptr()),
            *(rows, steps, None if lengths is None else lengths.data_ptr()),
            *(x.data_ptr(), x.stride(0), x.stride(1), y.data_ptr(), y.stride(0), y.stride(1)),
        )
        if status:
            raise MemoryError(f"out of memory for a linear layer over {rows} x {steps} timesteps")
        return y
