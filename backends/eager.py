"""torch itself, operator by operator: slower, but on every host with torch, and a place to set a breakpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..bucketing.grid import Bucket
from . import masked as _masked  # noqa: F401  the program calls its operators
from .interface import DEFAULTS, CannotLoad, CompileSettings, Option, Precision, Requirement, Run, Weights
from .signature import Signature, read_signature, signature_of, write_signature

_PROGRAM = "program.pt2"


class Eager:
    """The exported program as it is."""

    name = "eager"
    polymorphic = True
    any_shape = True
    precisions: tuple[Precision, ...] = ("float32",)
    options: tuple[Option, ...] = ()

    def unavailable(self) -> str | None:
        """Never: it is torch."""
        return None

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch."""
        return (Requirement("torch", "torch", torch.__version__.partition("+")[0]),)

    def host(self) -> Mapping[str, str]:
        """Any machine."""
        return {}

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Write the program with nothing but the shapes of its weights."""
        write_signature(signature_of(program, None), directory)
        state, constants = program._state_dict, program._constants
        program._state_dict, program._constants = _hollow(state), _hollow(constants)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there are only the hollow tensors
                torch.export.save(program, directory / _PROGRAM)
        finally:
            program._state_dict, program._constants = state, constants

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> Run:
        """Put the weights back and run.

        Raises:
            CannotLoad: this torch cannot read the program, or the weights are others.
        """
        signature = read_signature(directory)
        try:
            program = torch.export.load(directory / _PROGRAM)
        except Exception as error:
            raise CannotLoad(
                f"torch {torch.__version__} cannot read {directory / _PROGRAM} ({type(error).__name__}: {error}); "
                f"install the version it was packaged with, or package the model again"
            ) from error
        real = signature.pick_weights(weights)
        program._state_dict = {name: _like(hollow, real[name]) for name, hollow in program._state_dict.items()}
        program._constants = {name: real.get(name, hollow) for name, hollow in program._constants.items()}
        torch.set_num_threads(threads)
        return _run(signature, program.module())


def _run(signature: Signature, module: torch.nn.Module) -> Run:
    def run(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        signature.check_inputs(inputs)
        with torch.no_grad():
            return [output.contiguous() for output in module(*(tensor.contiguous() for tensor in inputs))]

    return run


def _hollow(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of the same shapes with one number in memory each."""
    return {name: _like(value, value.detach().new_zeros(()).expand(value.shape)) for name, value in tensors.items()}


def _like(model: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A parameter where the program has one, sharing memory with `tensor`."""
    if isinstance(model, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=False)
    return tensor
