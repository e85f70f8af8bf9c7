"""Analysis of the operators of a function that an engine supports, before tracing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from ..backends.exported_program import specialize
from ..backends.partitioning.cut_analysis import analyze_operators
from ..backends.registry import get_backend
from ..config.partitioner import PartitionerConfig
from ..lowering.errors import node_line
from .engines import AUTO, select_engines
from .export import Function, export_function
from .options import TraceOptions
from .trace import program_bucket


def analyze(
    func: Function,
    example_inputs: Any,
    compiler_workdir: str | Path | None = None,
    *,
    additional_ignored_ops: Collection[str] | None = None,
    max_workers: int = 1,
    backend: str = AUTO,
) -> dict[str, Any]:
    """Report the operators of `func` that the engine supports, and the lines of all others.

    >>> found = analyze(lambda x: torch.relu(x) + 1, torch.ones(3), backend="eager")
    >>> found["support_percentage"], found["supported_operators"]
    ('100.00%', {'aten': {'aten::add': 1, 'aten::relu': 1}})

    Args:
        func: as for `trace`.
        example_inputs: as for `trace`.
        compiler_workdir: without effect, as `max_workers`: nothing is compiled to query an engine.
        additional_ignored_ops: operators that are neither queried nor counted, as in {"aten::sort"}.
        max_workers: without effect.
        backend: an engine's name; "auto" is the first one available. A named one need not be installed.

    Returns:
        `backend`, `torch_version`, `support_percentage`, `supported_operators` by library with the number of calls, and
        `unsupported_operators` with `kind`, `failureAt`, `call` (the line, None if unknown), `reason`.

    Raises `LoweringError`, `CompileError`, `LoadError`, `ValueError`, `TypeError`: as `trace`.
    """
    config = PartitionerConfig(analyze_parameters={"additional_ignored_ops": tuple(additional_ignored_ops or ())})
    engine = select_engines(AUTO, TraceOptions())[0] if backend == AUTO else get_backend(backend)
    program = export_function(func, example_inputs).program
    fixed = specialize(program, program_bucket(program))
    result = analyze_operators(engine, fixed, config, node_line).to_json()
    keys = ("support_percentage", "supported_operators", "unsupported_operators")
    return {"backend": engine.name, "torch_version": torch.__version__, **{key: result[key] for key in keys}}
