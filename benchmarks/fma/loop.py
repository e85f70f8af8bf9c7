"""Loop of fused multiply-adds, compiled for the processor that runs it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from torchserve_neuron_lstm.backends import cpp_compiler

_SOURCE = Path(__file__).with_name("fma.cpp")
_TIMES = 3_000_000
"""A call takes 4 to 20 ms: starting its threads, about 0.1 ms, does not count."""


class CannotCompile(RuntimeError):
    """There is no C++ compiler for the loop, or it fails."""


class FmaLoop:
    """The loop on as many cores as there are threads: a call runs it once."""

    def __init__(self, threads: int, folder: Path) -> None:
        """Compile the loop into `folder`.

        Raises:
            CannotCompile: there is no compiler, or it fails.
        """
        library = folder / "fma.so"
        options = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread"]
        done = cpp_compiler.run([cpp_compiler.compiler(), *options, str(_SOURCE), "-o", str(library)])
        if done.returncode != 0:
            raise CannotCompile(done.stderr)
        code = ctypes.CDLL(str(library))
        code.fma_operations.restype = ctypes.c_int64
        code.fma_run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
        code.fma_run.restype = ctypes.c_float
        cores = sorted(os.sched_getaffinity(0))[:threads]
        self._cores = (ctypes.c_int * len(cores))(*cores)
        self._run = code.fma_run
        self._flop: int = code.fma_operations() * _TIMES * len(cores)

    def __call__(self) -> None:
        """Run the loop on every core."""
        self._run(ctypes.addressof(self._cores), len(self._cores), _TIMES)

    def gflops(self, seconds: Sequence[float]) -> float:
        """Return the best rate of some calls, in GFLOP/s."""
        return self._flop / min(seconds) / 1e9
