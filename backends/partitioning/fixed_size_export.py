"""Export of a part of a program at fixed sizes."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from ..exported_program import quiet
from ..interface import CompileError


def example_input(node: torch.fx.Node) -> torch.Tensor:
    """Return a tensor of ones with the sizes of a value.

    Raises:
        CompileError: the value is not a tensor.
    """
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise CompileError(f"{node.name} is not a tensor, and only tensors can be passed between an engine and the CPU")
    return torch.ones(tuple(int(size) for size in value.shape), dtype=value.dtype)


def export_module(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Export a module at the inputs' sizes."""
    with quiet(), torch.no_grad():
        return torch.export.export(module, inputs, strict=False)
