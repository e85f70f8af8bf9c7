"""Weights and constants of an exported program, held by a module under their own names."""

from __future__ import annotations

from typing import Any, cast

import torch

from ...backends.exported_program import module_with, quiet
from ..errors import LoweringError


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


def functionalized(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program without writes in place; the program itself if it has none.

    Raises:
        LoweringError: the model writes to a tensor of its own, which the next request would read.
    """
    if not any(_writes(node) for node in exported.graph.nodes):
        return exported
    try:
        with quiet():
            functional: torch.export.ExportedProgram = exported.run_decompositions({})
    except RuntimeError as error:  # a write to a tensor that is no buffer
        raise LoweringError(str(error).splitlines()[0]) from error
    signature = functional.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    if written:
        raise LoweringError(f"forward() writes to {', '.join(sorted(written))}, which the next request would read")
    return functional


def _writes(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
