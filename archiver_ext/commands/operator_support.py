"""Operators that each engine supports of a lowered model, and the user's lines with the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch.export import ExportedProgram

from ...backends.exported_program import specialize
from ...backends.interface import Backend, CompileError
from ...backends.partitioning.cut_analysis import Analysis, analyze_operators
from ...backends.registry import backend_names, get_backend
from ...bucketing.shapes import role_buckets
from ...config.load import load_config
from ...config.partitioner import PartitionerBlock
from ...config.schema import ServingConfig
from ...lowering import lower
from ...lowering.errors import node_line
from ...lowering.program import LoweredModel
from ..errors import PackagingError
from ..model_class import importable
from ..user_model import build_model, load_model
from . import print_note


def lower_from_files(
    model_file: Path, config_file: Path, serialized_file: Path | None
) -> tuple[LoweredModel, ServingConfig]:
    """Lower the user's model; without a serialized file it has freshly initialised weights.

    Raises `PackagingError`, `ConfigError`, `LoweringError`: the model cannot be lowered.
    """
    config = load_config(config_file)
    for file in filter(None, (model_file, serialized_file)):
        if not file.is_file():
            raise PackagingError(f"there is no file {file}")
    with importable(model_file.resolve().parent):
        if serialized_file is None:
            model = build_model(model_file, config.model, print_note)
        else:
            model = load_model(model_file, serialized_file, config.model, print_note)
        return lower(model, config), config


def analyze(program: LoweredModel, config: ServingConfig, backends: Sequence[str] | None = None) -> list[Analysis]:
    """Analyze a program in the smallest bucket, for the named engines or for all.

    Raises `LoadError`: there is no backend of that name.
    """
    engines = [get_backend(name) for name in dict.fromkeys(backends or backend_names())]
    fixed = specialize(program.exported, role_buckets("sequence", config.grid)[0])
    options = config.partitioner_config or PartitionerBlock()
    return [_analysis(engine, fixed, options) for engine in engines]


def _analysis(engine: Backend, program: ExportedProgram, options: PartitionerBlock) -> Analysis:
    try:
        return analyze_operators(engine, program, options, node_line)
    except CompileError as error:
        return Analysis(engine.name, engine.unavailable(), str(error), None, ())
