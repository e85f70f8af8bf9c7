"""Native engine: recurrent layers in C++ that stop each row at its own end.

Torch runs everything else.

See `recurrence/recurrence.cpp`. Every batch size and length runs in the same code, and padding costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...bucketing.shapes import Bucket
from .. import target_machine
from ..interface import DEFAULTS, Backend, CompileSettings, LoadedProgram, Precision, Requirement, Weights
from ..module_program import ModuleProgram
from ..program_source.read import FILE_NAME, load_source, read_source
from ..signature import read_signature, signature_of, write_signature
from ..versions import LOWEST_TORCH_REQUIREMENT
from .instruction_sets import is_built
from .layers import layer_functions
from .library import open_pool

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Native(Backend):
    """One program for every bucket."""

    name = "native"
    polymorphic = True
    any_shape = True
    ragged = True
    runs_in_forks = True
    whole_sequences = "native stops each row at its own end, so chunked execution would save nothing"
    precisions: tuple[Precision, ...] = ("float32", "bfloat16", "int8")

    def unavailable(self) -> str | None:
        """Return why this machine cannot compile a shared library; None if it can."""
        from ..cpp_compiler import unavailable_reason
        from .build import HEADERS, STANDARD

        return unavailable_reason(STANDARD, HEADERS)

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch, of any release that has the operators of the programs."""
        return (LOWEST_TORCH_REQUIREMENT,)

    def host(self) -> Mapping[str, str]:
        """Return the operating system, the machine and its instruction set."""
        return target_machine.host()

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the program's source, and the recurrent library if the source calls it."""
        from .build import build
        from .rewrite import native_source

        write_signature(signature_of(program, None), directory)
        source = native_source(program)
        (directory / FILE_NAME).write_text(source.text, encoding="utf-8")
        if source.layers:
            build(directory, settings.precision)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Map the recurrent library and reorder the weights of the recurrences for it."""
        target_machine.check_host(host)
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        pool = open_pool(directory, threads) if is_built(directory) else None
        layers = {} if pool is None else layer_functions(pool)
        # torch's own threads would spin on the cores that the library's threads compute on.
        torch.set_num_threads(1)
        module = load_source(read_source(directory), real, layers, directory / FILE_NAME)
        if pool is None:
            return ModuleProgram(signature, module, real.values())
        return ModuleProgram(signature, module, real.values(), pool.wake)
