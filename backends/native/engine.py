"""Native engine: recurrent layers in C++ that stop each row at its own end.

Torch runs everything else.

See `recurrence.cpp`. Every batch size and length runs in the same code, and padding costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram

from ...bucketing.shapes import Bucket
from .. import cpp_compiler
from .. import masked as _masked  # noqa: F401  registers the operators of calls that are not replaced
from ..exported_program import load_weight_stripped, save_weight_stripped
from ..interface import DEFAULTS, Backend, CompileSettings, LoadedProgram, Precision, Requirement, Weights
from ..module_program import ModuleProgram
from ..signature import read_signature, signature_of, write_signature
from ..versions import torch_requirement
from . import build
from .library import RecurrentLibrary, ThreadPool
from .rewrite import has_supported_ops, replace_supported_ops

_PROGRAM = "program.pt2"


class Native(Backend):
    """One program for every bucket."""

    name = "native"
    polymorphic = True
    any_shape = True
    ragged = True
    whole_sequences = "native stops each row at its own end, so chunked execution would save nothing"
    precisions: tuple[Precision, ...] = ("float32",)

    def unavailable(self) -> str | None:
        """Return why there is no C++ compiler for shared libraries, or that this kind of machine is not
        supported.
        """
        return cpp_compiler.unavailable_reason(build.HEADERS)

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch."""
        return (torch_requirement(),)

    def host(self) -> Mapping[str, str]:
        """Return the operating system, the machine and its instruction set."""
        return cpp_compiler.host()

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return None: torch runs every operator that is not replaced."""
        return None

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the weight-stripped program, and the recurrent library if the program has operators for it.

        Raises:
            CompileError: the C++ compiler rejects the source.
        """
        write_signature(signature_of(program, None), directory)
        save_weight_stripped(program, directory / _PROGRAM)
        if has_supported_ops(program):
            build.build(directory)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Map the recurrent library and reorder the weights of the recurrences for it.

        Raises:
            LoadError: the library was compiled for another machine or cannot be mapped, this torch cannot read the
                program, or the weights do not match.
        """
        cpp_compiler.check_host(host)
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        program = load_weight_stripped(directory / _PROGRAM, real)
        pool = _open(directory, threads) if has_supported_ops(program) else None
        # torch's own threads would spin on the cores that the library's threads compute on.
        torch.set_num_threads(1)
        return ModuleProgram(signature, replace_supported_ops(program, real, pool), real.values())


def _open(directory: Path, threads: int) -> ThreadPool:
    """The library for this processor, with its own threads."""
    name = build.fastest_library()
    with cpp_compiler.executable_copy(directory, (name,)) as mapped:
        return ThreadPool(RecurrentLibrary(mapped / name), threads)
