"""Graph partitioning: operators on the CPU beside an engine, within the limits of the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.export import ExportedProgram

from ...backends.exported_program import specialize
from ...backends.interface import Backend
from ...backends.partitioning.backend import PartitionedBackend, supported_segments
from ...backends.partitioning.partition import PartitionError
from ...backends.partitioning.segments import Segments
from ...bucketing.shapes import Bucket, ProgramRole
from ...config.partitioner import PartitionerConfig
from ...config.schema import ServingConfig
from ..errors import PackagingError


def partitioner_config(config: ServingConfig, directory: Path) -> PartitionerConfig | None:
    """Convert the partitioner's options of the YAML; paths are relative to `directory`.

    `trace_kwargs` is left out: it belongs to the compiler's settings.
    """
    written = config.partitioner_config
    if written is None:
        return None
    analyze = None
    if written.analyze_parameters is not None:
        analyze = written.analyze_parameters.model_dump(exclude_none=True)
        if "compiler_workdir" in analyze:
            analyze["compiler_workdir"] = str(directory / analyze["compiler_workdir"])
    limits = written.model_dump(exclude={"trace_kwargs", "analyze_parameters"})
    return PartitionerConfig(**limits, analyze_parameters=analyze)


def with_cpu_fallback(
    engine: Backend,
    programs: Mapping[ProgramRole, tuple[ExportedProgram, Bucket]],
    config: PartitionerConfig,
) -> Backend:
    """Return the engine if it supports every operator of every program, else a partitioned one.

    Each program is examined in the bucket beside it.

    Raises `PackagingError`: the segments violate the limits of `config`.
    """
    found = [_segments(engine, program, bucket, config) for program, bucket in programs.values()]
    whole = all(segment.place == "device" for segments in found for segment in segments.segments)
    return engine if whole else PartitionedBackend(engine, config)


def _segments(engine: Backend, program: ExportedProgram, bucket: Bucket, config: PartitionerConfig) -> Segments:
    fixed = specialize(program, bucket)
    try:
        return supported_segments(engine, fixed, config)
    except PartitionError as error:
        raise PackagingError(f"neuron_lstm.partitioner_config.{error}") from error
