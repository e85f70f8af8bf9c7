"""One program to compile, its compilation in this process, and its outcome."""

from __future__ import annotations

import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from torch.export import ExportedProgram

from ...bucketing.shapes import Bucket, ProgramRole
from ...config.file_errors import describe_file_error, is_of_the_disk
from ...config.partitioner import PartitionerConfig
from .. import recurrent_operators  # noqa: F401 - registers the operators that programs call
from ..interface import DEFAULTS, CompileError, CompileSettings
from ..partitioning.backend import PartitionedBackend
from ..registry import get_backend


@dataclass(frozen=True)
class CompileJob:
    """One program to compile; `bucket` is None for an engine with dynamic shapes."""

    backend: str
    part: ProgramRole
    bucket: Bucket | None
    program: Path
    """A file that `save_program` wrote."""
    directory: Path
    settings: CompileSettings = DEFAULTS
    partitioner: PartitionerConfig | None = None
    """Options of graph partitioning; None if the engine runs the whole program."""

    def __str__(self) -> str:
        """Return a short description, e.g. `inductor chunk 4 x 128`."""
        shape = "any shape" if self.bucket is None else f"{self.bucket.batch} x {self.bucket.length}"
        return f"{self.backend} {self.part} {shape}"

    def make_folders(self) -> None:
        """Make the folders of the program and, if the compiler's files are kept, of these."""
        self.directory.mkdir(parents=True)
        if self.settings.workdir is not None:
            self.settings.workdir.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class CompileResult:
    """Cost of compiling one program."""

    job: CompileJob
    seconds: float
    size: int
    """Bytes on disk."""


@dataclass(frozen=True)
class CompileFailure:
    """Reason why an engine is rejected: it does not support the program, or failed."""

    job: CompileJob
    reason: str


CompileOutcome = CompileResult | CompileFailure


def crash_of(job: CompileJob, crash: str, log: str) -> CompileFailure:
    """Describe the failure of an engine that raised an error or ended its process, with what it printed."""
    return CompileFailure(job, f"the engine failed ({crash})\n{textwrap.indent(log, '    ')}")


def compile_seconds(job: CompileJob, program: ExportedProgram) -> float:
    """Compile a program, which the caller has read, into the job's folder.

    Returns the seconds that it took.

    Raises:
        CompileError: the engine does not support the program, or the disk fails.
        Exception: any exception of a failing engine.
    """
    started = time.perf_counter()
    engine = get_backend(job.backend)
    if job.partitioner is not None:
        engine = PartitionedBackend(engine, job.partitioner)
    try:
        engine.compile(program, job.bucket, job.directory, job.settings)
    except OSError as error:
        if not is_of_the_disk(error):
            raise
        raise CompileError(f"nothing can be compiled: {describe_file_error(error, job.directory)}") from error
    return time.perf_counter() - started
