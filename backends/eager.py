"""Eager engine: torch runs the program operator by operator.

It is slower, but runs wherever torch does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram

from ..bucketing.shapes import Bucket
from . import masked as _masked  # noqa: F401  registers the operators that programs call
from .exported_program import load_weight_stripped, save_weight_stripped
from .interface import DEFAULTS, Backend, CompileSettings, LoadedProgram, Precision, Requirement, Weights
from .module_program import ModuleProgram
from .signature import read_signature, signature_of, write_signature
from .versions import torch_requirement

_PROGRAM = "program.pt2"


class Eager(Backend):
    """The exported program, unchanged."""

    name = "eager"
    polymorphic = True
    any_shape = True
    precisions: tuple[Precision, ...] = ("float32",)

    def unavailable(self) -> str | None:
        """Return None: torch is always here."""
        return None

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch."""
        return (torch_requirement(),)

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return None: torch supports every operator that it exports."""
        return None

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Write the weight-stripped program."""
        write_signature(signature_of(program, None), directory)
        save_weight_stripped(program, directory / _PROGRAM)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load the program over the weights.

        Raises:
            LoadError: this torch cannot read the program, or the weights do not match.
        """
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        module = load_weight_stripped(directory / _PROGRAM, real).module()
        torch.set_num_threads(threads)
        return ModuleProgram(signature, module, real.values())
