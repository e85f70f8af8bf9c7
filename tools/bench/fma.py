"""Rate of fused multiply-adds of the cores, by a loop that is compiled for them: no program is faster."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .harness import BenchmarkFailed

_SOURCE = Path(__file__).with_name("fma.cpp")
_TIMES = 3_000_000
"""A call takes 4 to 20 ms: starting its threads, about 0.1 ms, does not count."""


class FmaLoop:
    """The loop on as many cores as there are threads: a call runs it once."""

    def __init__(self, threads: int, folder: Path) -> None:
        """Compile the loop into `folder`; raises `BenchmarkFailed` without a C++ compiler that does."""
        library = folder / "fma.so"
        options = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread"]
        command = [os.environ.get("CXX", "g++"), *options, str(_SOURCE), "-o", str(library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise BenchmarkFailed(f"there is no C++ compiler {command[0]}: install g++, or name yours in CXX") from None
        if done.returncode != 0:
            raise BenchmarkFailed(done.stderr)
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

    def cores_obtained(self, calls: int = 5) -> float:
        """Return the share of the cores' time that this process gets while it asks for all of it."""
        began, used = time.perf_counter(), time.process_time()
        for _ in range(calls):
            self()
        return (time.process_time() - used) / (time.perf_counter() - began) / len(self._cores)
