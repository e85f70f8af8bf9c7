"""An exported program in a file without its weights, and back: nothing of a weight is written but its shape."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .interface import CannotLoad, Weights


def save_hollow(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write the program with one number in place of each weight."""
    state, constants = program._state_dict, program._constants
    program._state_dict, program._constants = _hollow(state), _hollow(constants)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are only the hollow tensors
            torch.export.save(program, path)
    finally:
        program._state_dict, program._constants = state, constants


def load_hollow(path: Path, weights: Weights) -> torch.nn.Module:
    """The program over `weights`, which it shares, as a module.

    Raises:
        CannotLoad: this torch cannot read the program.
    """
    return load_program(path, weights).module()


def load_program(path: Path, weights: Weights) -> torch.export.ExportedProgram:
    """The program over `weights`, which it shares.

    Raises:
        CannotLoad: this torch cannot read the program.
    """
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise CannotLoad(
            f"torch {torch.__version__} cannot read {path} ({type(error).__name__}: {error}); "
            f"install the version it was packaged with, or package the model again"
        ) from error
    program._state_dict = {name: _like(hollow, weights[name]) for name, hollow in program._state_dict.items()}
    program._constants = {name: weights.get(name, hollow) for name, hollow in program._constants.items()}
    return program


def _hollow(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of the same shapes with one number in memory each."""
    return {name: _like(value, value.detach().new_zeros(()).expand(value.shape)) for name, value in tensors.items()}


def _like(model: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A parameter where the program has one, sharing memory with `tensor`."""
    if isinstance(model, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=False)
    return tensor
