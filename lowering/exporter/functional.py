"""Graphs without operators that write in place."""

from __future__ import annotations

import torch

from ...backends.exported_program import quiet
from ..errors import LoweringError


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
