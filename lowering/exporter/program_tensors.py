"""Weights and constants of an exported program, held by a module under their own names."""

from __future__ import annotations

from typing import Any, cast

import torch

from ...backends.exported_program import module_with


def tensor_targets(exported: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the names of weights, buffers and constants by the placeholders of the graph."""
    signature = exported.graph_signature
    return {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }


def holder_of(exported: torch.export.ExportedProgram) -> torch.nn.Module:
    """Build a module with all tensors of the program by their names."""
    tensors: dict[str, torch.Tensor] = {}
    for target in tensor_targets(exported).values():
        known = exported.state_dict.get(target, exported.constants.get(target))
        if isinstance(known, torch.Tensor):
            tensors[target] = known
    return module_with(tensors, exported.state_dict)


def tensors_by_placeholder(exported: torch.export.ExportedProgram, holder: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that `holder` has now, by the placeholders of the graph."""
    return {name: _tensor(holder, target) for name, target in tensor_targets(exported).items()}


def _tensor(holder: torch.nn.Module, target: str) -> torch.Tensor:
    found: Any = holder
    for name in target.split("."):
        found = getattr(found, name)
    return cast(torch.Tensor, found)
