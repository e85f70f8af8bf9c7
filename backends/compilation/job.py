"""One program to compile, its compilation in this process, and its outcome."""

from __future__ import annotations

import textwrap
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.export import ExportedProgram

from ...bucketing.shapes import Bucket, ProgramRole
from ...config.file_errors import describe_file_error, is_of_the_disk
from ...config.partitioner import PartitionerBlock
from .. import recurrent_operators  # noqa: F401 - registers the operators that programs call
from ..interface import DEFAULTS, CompileError, CompileSettings
from ..partitioning.backend import PartitionedBackend
from ..registry import get_backend
from ..torch_files import disk_size


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
    partitioner: PartitionerBlock | None = None
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


def compile_job(job: CompileJob, load: Callable[[Path], ExportedProgram]) -> CompileOutcome:
    """Compile a program into the job's folder. `load` reads it. A failure is the outcome and is not raised."""
    try:
        program, engine = load(job.program), get_backend(job.backend)
        if job.partitioner is not None:
            engine = PartitionedBackend(engine, job.partitioner)
        started = time.perf_counter()
        engine.compile(program, job.bucket, job.directory, job.settings)
    except CompileError as error:
        return CompileFailure(job, str(error))
    except Exception as error:  # noqa: BLE001 - a failure of the engine, reported as such
        if isinstance(error, OSError) and is_of_the_disk(error):
            return CompileFailure(job, f"nothing can be compiled: {describe_file_error(error, job.directory)}")
        return crash_of(job, f"{type(error).__name__}: {error}", traceback.format_exc())
    return CompileResult(job, time.perf_counter() - started, disk_size(job.directory))
