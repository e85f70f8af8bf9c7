"""Compilation of partitioned programs: segments for an engine, and the rest for the CPU.

The program of each bucket is partitioned and the engine compiles its segments. The segments of the CPU are saved beside
them as exported programs. `partitioned_program.py` loads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch.export import ExportedProgram

from ...bucketing.shapes import Bucket
from ...config.json_codec import write_json
from ...config.partitioner import PartitionerBlock, TraceArguments
from ..eager import Eager
from ..exported_program import specialize
from ..interface import DEFAULTS, Backend, CompileError, CompileSettings, LoadedProgram, Requirement, Weights
from ..signature import signature_of, write_signature
from ..versions import LOWEST_TORCH, release
from .partition import PartitionError, partition
from .partitioned_program import SEGMENTS, SegmentList, device_folders, load_compiled, segment_directory
from .segments import Segment


class PartitionedBackend(Backend):
    """An engine with CPU fallback for some operators: one program for each bucket."""

    def __init__(self, engine: Backend, config: PartitionerBlock | None = None) -> None:
        """Wrap `engine`; `config` has the partitioner's options, None: the defaults."""
        self.engine, self.config = engine, config
        self.name = engine.name
        self.precisions, self.options = engine.precisions, engine.options
        self.whole_sequences, self.inlines_weights = engine.whole_sequences, engine.inlines_weights
        self.largest_integer = engine.largest_integer

    def unavailable(self) -> str | None:
        """Return why the engine is unavailable; None if it is available."""
        return self.engine.unavailable()

    def requirements(self) -> tuple[Requirement, ...]:
        """Return the engine's requirements. All engines need torch."""
        return self.engine.requirements()

    def host(self) -> Mapping[str, str]:
        """Return the engine's kind of machine."""
        return self.engine.host()

    def simulation(self) -> str | None:
        """Return what emulates the engine's device here, and why."""
        return self.engine.simulation()

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Partition the program for one bucket and write each segment into a separate directory."""
        assert bucket is not None  # it is not polymorphic
        config = self.config or PartitionerBlock()
        fixed = specialize(program, bucket)
        try:
            segments = partition(fixed, lambda node: self.engine.refusal(node) is None, config)
        except PartitionError as error:
            raise CompileError(f"partitioner_config.{error}") from error
        write_signature(signature_of(program, bucket), directory)
        write_json(SegmentList, segments, directory / SEGMENTS)
        options = config.trace_kwargs or TraceArguments()
        overridden = replace(
            settings,
            workdir=settings.workdir if options.compiler_workdir is None else Path(options.compiler_workdir),
            args=settings.args if options.compiler_args is None else options.compiler_args,
        )
        for index, segment in enumerate(segments.segments):
            folder = directory / segment_directory(index, segment.place)
            folder.mkdir()
            if segment.place == "cpu":
                self._write_for_cpu(segment, bucket, folder)
            else:
                self._compile(segment, bucket, folder, _with_own_workdir(overridden, index))

    def _compile(self, segment: Segment, bucket: Bucket, directory: Path, settings: CompileSettings) -> None:
        try:
            self.engine.compile(segment.program, None if self.engine.polymorphic else bucket, directory, settings)
        except CompileError as error:
            operators = ", ".join(dict.fromkeys(segment.operators))
            raise CompileError(
                f"{error} (a segment of {operators}; to run some of them on the CPU, name these in "
                f"partitioner_config.ops_to_partition)"
            ) from error

    def _write_for_cpu(self, segment: Segment, bucket: Bucket, directory: Path) -> None:
        """Save a segment as source, in the form of the AWS Neuron engines if hosts have an older torch."""
        needs = [release(need.version) for need in self.engine.requirements() if need.module == "torch"]
        if any(version < release(LOWEST_TORCH) for version in needs):
            from ..aws_neuron.device import write_artifact
            from ..aws_neuron.source_export import export_source

            write_artifact(directory, export_source(segment.program, bucket), {})
        else:
            Eager().compile(segment.program, None, directory)

    def estimate_us(self, directory: Path) -> float | None:
        """Return the estimates of the engine's segments together; the CPU's segments have none."""
        folders = device_folders(directory).values()
        estimates = [estimate for folder in folders if (estimate := self.engine.estimate_us(folder)) is not None]
        return sum(estimates) if folders and len(estimates) == len(folders) else None

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load every segment."""
        return load_compiled(self.engine.load, directory, weights, host, threads)


def _with_own_workdir(settings: CompileSettings, index: int) -> CompileSettings:
    if settings.workdir is None:
        return settings
    workdir = settings.workdir.resolve() / str(index)  # compilers may run in another directory
    workdir.mkdir(parents=True, exist_ok=True)
    return replace(settings, workdir=workdir)
