"""Weights and constants of an exported program, held by a module under their own names."""

from __future__ import annotations

from operator import attrgetter

import torch

from ...backends.exported_program import module_with, quiet
from ...backends.exported_tensors import weight_names, weights_of
from ..errors import LoweringError


def holder_of(exported: torch.export.ExportedProgram) -> torch.nn.Module:
    """Build a module with all tensors of the program by their names."""
    tensors = weights_of(exported)
    names = [name for name in weight_names(exported).values() if name in tensors]
    return module_with({name: tensors[name] for name in names}, exported.state_dict)


def tensors_by_placeholder(exported: torch.export.ExportedProgram, holder: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that `holder` has now, by the placeholders of the graph."""
    return {name: attrgetter(target)(holder) for name, target in weight_names(exported).items()}


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
