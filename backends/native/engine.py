"""Recurrences by a kernel of our own, which stops each row at its own end; everything else by torch.

See `recurrence/recurrence.cpp`. Every batch and length runs in the same code, and padding costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ...bucketing.shapes import Bucket
from .. import cpp_compiler
from .. import masked as _masked  # noqa: F401  the program calls its operators where the kernel does not know them
from ..exported_program import load_weight_stripped, save_weight_stripped
from ..interface import DEFAULTS, CompilerOption, CompileSettings, LoadedProgram, Precision, Requirement, Weights
from ..module_program import ModuleProgram
from ..signature import read_signature, signature_of, write_signature
from ..versions import torch_requirement
from . import build
from .library import RecurrentLibrary, ThreadPool
from .rewrite import has_supported_ops, replace_recurrent_ops

_PROGRAM = "program.pt2"


class Native:
    """One program for every bucket."""

    name = "native"
    polymorphic = True
    any_shape = True
    ragged = True
    whole_sequences = "native stops each row at its own end, so that pieces of time would save nothing"
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[CompilerOption, ...] = ()

    def unavailable(self) -> str | None:
        """Whether there is a C++ compiler that makes shared libraries, on a kind of machine that is known."""
        return cpp_compiler.unavailable_reason(build.HEADERS)

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch."""
        return (torch_requirement(),)

    def host(self) -> Mapping[str, str]:
        """The operating system, the machine and its instructions."""
        return cpp_compiler.host()

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Never: what was exported is torch's."""
        return None

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the program with nothing but the shapes of its weights, and the kernel where there is work for it.

        Raises:
            CompileError: the C++ compiler refuses the kernel.
        """
        write_signature(signature_of(program, None), directory)
        save_weight_stripped(program, directory / _PROGRAM)
        if has_supported_ops(program):
            build.build(directory)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Map the kernel and bring the weights of the recurrences into its order.

        Raises:
            LoadError: this machine lacks what the kernel was compiled for, or cannot map it; this torch cannot read
                the program; or the weights are others.
        """
        cpp_compiler.check_host(host)
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        program = load_weight_stripped(directory / _PROGRAM, real)
        pool = _open(directory, threads) if has_supported_ops(program) else None
        # Torch's own threads would wait for more work busily, on the cores that the kernel's are to compute with.
        torch.set_num_threads(1)
        return ModuleProgram(signature, replace_recurrent_ops(program, real, pool), real.values())


def _open(directory: Path, threads: int) -> ThreadPool:
    """The kernel with threads of its own."""
    name = build.fastest_library()
    with cpp_compiler.executable_copy(directory, (name,)) as place:
        return ThreadPool(RecurrentLibrary(place / name), threads)
