"""Operators on the CPU where the YAML allows it: whether an engine leaves any there, and whether limits are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ...backends.exported_program import specialize
from ...backends.interface import Backend, CompileSettings
from ...backends.partitioning.backend import PartitionedBackend
from ...backends.partitioning.operator_support import unsupported_operators
from ...backends.partitioning.partition import PartitionError, Segments, partition
from ...backends.partitioning.partitioned_program import cpu_operators
from ...bucketing.shapes import Bucket, ProgramRole
from ...config.partitioner import PartitionerConfig
from ...config.schema import ServingConfig
from ..archive import layout
from ..errors import PackagingError


def partitioner_config(config: ServingConfig, beside: Path) -> PartitionerConfig | None:
    """The options of the YAML that say how programs are divided; paths are relative to `beside`.

    `trace_kwargs` is not among them: what it says to the compiler is part of the compiler's settings.
    """
    written = config.partitioner_config
    if written is None:
        return None
    analyze = None
    if written.analyze_parameters is not None:
        analyze = {key: value for key, value in written.analyze_parameters.model_dump().items() if value is not None}
        if "compiler_workdir" in analyze:
            analyze["compiler_workdir"] = str(beside / analyze["compiler_workdir"])
    return PartitionerConfig(
        model_support_percentage_threshold=written.model_support_percentage_threshold,
        min_subgraph_size=written.min_subgraph_size,
        max_subgraph_count=written.max_subgraph_count,
        ops_to_partition=written.ops_to_partition,
        analyze_parameters=analyze,
    )


def with_cpu_fallback(
    engine: Backend,
    programs: Mapping[ProgramRole, tuple[torch.export.ExportedProgram, Bucket]],
    config: PartitionerConfig,
    settings: CompileSettings,
) -> Backend:
    """The engine itself where it takes every operator of every program, else the engine and the CPU together.

    Each program comes with a bucket to look at it in.

    Raises:
        PackagingError: the segments are not what `config` asks for.
    """
    found = [_segments(engine, program, bucket, config, settings) for program, bucket in programs.values()]
    whole = all(segment.target == "device" for segments in found for segment in segments.segments)
    return engine if whole else PartitionedBackend(engine, config)


def cpu_operators_in(tree: Path, backend: str) -> tuple[str, ...]:
    """The operators, each once, that the programs in an archive's tree leave to the CPU."""
    variants = sorted((tree / layout.PROGRAMS / backend).glob("*/*"))
    return tuple(dict.fromkeys(name for variant in variants for name in cpu_operators(variant)))


def _segments(
    engine: Backend,
    program: torch.export.ExportedProgram,
    bucket: Bucket,
    config: PartitionerConfig,
    settings: CompileSettings,
) -> Segments:
    fixed = specialize(program, bucket)
    refused = {
        node.name
        for node, why in unsupported_operators(engine, fixed, bucket, config, settings).items()
        if why is not None
    }
    try:
        return partition(fixed, lambda node: node.name not in refused, config)
    except PartitionError as error:
        raise PackagingError(f"neuron_lstm.partitioner_config.{error}") from error
