"""Weights and constants of an exported program, held by a module under their own names."""

from __future__ import annotations

from operator import attrgetter

import torch

from ...backends.exported_program import module_with
from ...backends.exported_tensors import weight_names, weights_of


def holder_of(exported: torch.export.ExportedProgram) -> torch.nn.Module:
    """Build a module with all tensors of the program by their names."""
    tensors = weights_of(exported)
    names = [name for name in weight_names(exported).values() if name in tensors]
    return module_with({name: tensors[name] for name in names}, exported.state_dict)


def tensors_by_placeholder(exported: torch.export.ExportedProgram, holder: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that `holder` has now, by the placeholders of the graph."""
    return {name: attrgetter(target)(holder) for name, target in weight_names(exported).items()}
