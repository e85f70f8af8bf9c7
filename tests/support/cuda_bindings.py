"""A double of the package cuda-bindings: it compiles nothing, can refuse, and records launches."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest


class Code(IntEnum):
    """An answer of CUDA."""

    SUCCESS = 0
    ERROR_COMPILATION = 6
    ERROR_LAUNCH = 719


@dataclass
class FakeCuda:
    """NVRTC and the driver of one GPU."""

    compiled: list[tuple[str, ...]] = field(default_factory=list)
    launches: list[tuple[Any, ...]] = field(default_factory=list)
    refused: str | None = None
    """An option with which nothing compiles."""
    code: Code = Code.SUCCESS
    """The answer to a launch."""

    def install(self, patch: pytest.MonkeyPatch) -> FakeCuda:
        """Take the place of the package until the test is over."""
        nvrtc, driver = ModuleType("cuda.bindings.nvrtc"), ModuleType("cuda.bindings.driver")
        nvrtc.__dict__.update(
            nvrtcCreateProgram=self._create_program,
            nvrtcCompileProgram=self._compile_program,
            nvrtcGetProgramLogSize=self._get_program_log_size,
            nvrtcGetProgramLog=self._get_program_log,
            nvrtcGetCUBINSize=self._get_cubin_size,
            nvrtcGetCUBIN=self._get_cubin,
            nvrtcDestroyProgram=self._destroy_program,
        )
        driver.__dict__.update(
            cuModuleLoadData=self._module_load_data,
            cuModuleGetFunction=self._module_get_function,
            cuLaunchKernel=self._launch_kernel,
        )
        for module in (nvrtc, driver):
            patch.setitem(sys.modules, module.__name__, module)
        for name in ("cuda", "cuda.bindings"):
            patch.setitem(sys.modules, name, ModuleType(name))
        return self

    def _create_program(self, source: bytes, name: bytes, *_: object) -> tuple[Any, ...]:
        assert b"recurrence(" in source
        return Code.SUCCESS, name

    def _compile_program(self, program: bytes, count: int, options: list[bytes]) -> tuple[Any, ...]:
        given = tuple(option.decode() for option in options)
        assert count == len(given)
        self.compiled.append(given)
        return (Code.ERROR_COMPILATION if self.refused in given else Code.SUCCESS,)

    def _get_program_log_size(self, program: bytes) -> tuple[Any, ...]:
        return Code.SUCCESS, len(_LOG)

    def _get_program_log(self, program: bytes, log: bytes) -> tuple[Any, ...]:
        _write(log, _LOG)
        return (Code.SUCCESS,)

    def _get_cubin_size(self, program: bytes) -> tuple[Any, ...]:
        return Code.SUCCESS, len(_CUBIN)

    def _get_cubin(self, program: bytes, cubin: bytes) -> tuple[Any, ...]:
        _write(cubin, _CUBIN)
        return (Code.SUCCESS,)

    def _destroy_program(self, program: bytes) -> tuple[Any, ...]:
        return (Code.SUCCESS,)

    def _module_load_data(self, cubin: bytes) -> tuple[Any, ...]:
        assert cubin == _CUBIN
        return Code.SUCCESS, "module"

    def _module_get_function(self, module: str, name: bytes) -> tuple[Any, ...]:
        return Code.SUCCESS, (module, name)

    def _launch_kernel(self, function: object, *sizes_and_arguments: Any) -> tuple[Any, ...]:
        self.launches.append(sizes_and_arguments)
        return (self.code,)


_LOG = b"recurrence.cu(1): error: no such architecture\n\0"
_CUBIN = b"\x7fELF"


def _write(target: bytes, content: bytes) -> None:
    """Write into a buffer of bytes, as the real package does."""
    assert len(target) == len(content)
    address = id(target) + sys.getsizeof(b"") - 1
    ctypes.memmove(address, content, len(content))
