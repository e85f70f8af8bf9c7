"""Exported programs as files: with marks for the time dimension, or weight-stripped.

torch names the symbols of batch and time by itself, and its files forget these names. A program with a recurrence shows
which dimension is time; one without does not. So the dimension is marked, and the mark is written beside the program.
A weight-stripped file holds the shape of each weight and none of its numbers.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .interface import LoadError, Weights


def save_weight_stripped(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write the program with one number in place of each weight."""
    state, constants = program._state_dict, program._constants
    program._state_dict, program._constants = _hollow(state), _hollow(constants)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are only the hollow tensors
            torch.export.save(program, path)
    finally:
        program._state_dict, program._constants = state, constants


def load_weight_stripped(path: Path, weights: Weights) -> torch.nn.Module:
    """The program over `weights`, which it shares, as a module.

    Raises:
        LoadError: this torch cannot read the program.
    """
    return load_weight_stripped_program(path, weights).module()


def load_weight_stripped_program(path: Path, weights: Weights) -> torch.export.ExportedProgram:
    """The program over `weights`, which it shares.

    Raises:
        LoadError: this torch cannot read the program.
    """
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise LoadError(
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


_MARK = "neuron_lstm_time"
_EXTRA = "time.json"


def mark_time(program: torch.export.ExportedProgram, dims: Mapping[str, int]) -> None:
    """Note in the program which dimension of which input is time, by the inputs' names in it."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in dims:
            node.meta[_MARK] = dims[node.name]


def time_dims(program: torch.export.ExportedProgram) -> dict[str, int]:
    """What `mark_time` noted."""
    return {node.name: node.meta[_MARK] for node in program.graph.nodes if _MARK in node.meta}


def save_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """torch.export.save, with the notes."""
    torch.export.save(program, path, extra_files={_EXTRA: json.dumps(time_dims(program))})


def load_program(path: Path) -> torch.export.ExportedProgram:
    """The way back; files without notes have none."""
    extra: dict[str, str] = {_EXTRA: ""}
    program: torch.export.ExportedProgram = torch.export.load(path, extra_files=extra)
    mark_time(program, json.loads(extra[_EXTRA] or "{}"))
    return program
