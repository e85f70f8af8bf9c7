"""torch itself, operator by operator: slower, but on every host with torch, and a place to set a breakpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..bucketing.shapes import Bucket
from . import masked as _masked  # noqa: F401  the program calls its operators
from .exported_program import load_weight_stripped, save_weight_stripped
from .interface import DEFAULTS, CompilerOption, CompileSettings, LoadedProgram, Precision, Requirement, Weights
from .signature import Signature, read_signature, signature_of, write_signature
from .weights import copy_if_aliased, storage_ptrs

_PROGRAM = "program.pt2"


class Eager:
    """The exported program as it is."""

    name = "eager"
    polymorphic = True
    any_shape = True
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[CompilerOption, ...] = ()

    def unavailable(self) -> str | None:
        """Never: it is torch."""
        return None

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch."""
        return (Requirement("torch", "torch", torch.__version__.partition("+")[0]),)

    def host(self) -> Mapping[str, str]:
        """Any machine."""
        return {}

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
        """Write the program with nothing but the shapes of its weights."""
        write_signature(signature_of(program, None), directory)
        save_weight_stripped(program, directory / _PROGRAM)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Put the weights back and run.

        Raises:
            LoadError: this torch cannot read the program, or the weights are others.
        """
        signature = read_signature(directory)
        real = signature.pick_weights(weights)
        module = load_weight_stripped(directory / _PROGRAM, real)
        torch.set_num_threads(threads)
        return run_of(signature, module, real)


def run_of(signature: Signature, module: torch.nn.Module, weights: Weights) -> LoadedProgram:
    """A module of flat inputs and flat outputs as a loaded program. Operators of torch may answer with a weight."""
    places = storage_ptrs(weights.values())

    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        signature.check_inputs(inputs)
        with torch.no_grad():
            outputs = module(*(tensor.contiguous() for tensor in inputs))
            return [copy_if_aliased(output.contiguous(), places) for output in outputs]

    return run
