"""Eager engine: torch runs the program operator by operator. It is slower, but runs wherever torch does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..bucketing.shapes import Bucket
from .cores import set_torch_threads
from .interface import DEFAULTS, Backend, CompileSettings, LoadedProgram, Requirement, Weights
from .module_program import ModuleProgram
from .program_source.read import FILE_NAME, load_source, read_source
from .signature import read_signature, signature_of, write_signature
from .versions import LOWEST_TORCH_REQUIREMENT

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class Eager(Backend):
    """The exported program, as Python source."""

    name = "eager"
    polymorphic = True
    any_shape = True
    runs_in_forks = True

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch, of any release that has the operators of the programs."""
        return (LOWEST_TORCH_REQUIREMENT,)

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the program's source. Raises `CompileError`: source cannot express an operator."""
        from .program_source.write import program_source

        write_signature(signature_of(program, None), directory)
        (directory / FILE_NAME).write_text(program_source(program), encoding="utf-8")

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load the program over the weights."""
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        program = load_source(read_source(directory), real, path=directory / FILE_NAME)
        set_torch_threads(threads)
        return ModuleProgram(signature, program, real.values())
