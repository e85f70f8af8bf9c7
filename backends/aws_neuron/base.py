"""Base of the AWS Neuron engines: one program for each bucket, compiled from Python source.

Not run on hardware: no such device was available. The engines were run against the documented contract of AWS's tracing
API. Each package of AWS requires one old release of torch, so the compiler may be in a separate interpreter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...bucketing.shapes import Bucket
from ..cores import set_torch_threads
from ..interface import (
    DEFAULTS,
    Backend,
    CompileError,
    CompilerOption,
    CompileSettings,
    LoadedProgram,
    LoadError,
    Precision,
    Requirement,
    Weights,
)
from . import device

if TYPE_CHECKING:
    from torch.export import ExportedProgram  # not in the torch of Inf1's hosts

    from .toolchain import CompileReply


class NeuronBackend(Backend):
    """A Neuron engine; a subclass has the compiler's options and loads the module.

    The runtime itself refuses a program for another kind of device.
    """

    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    largest_integer = 2**24
    """The compiler makes int64 int32 (neuronx-cc, `--implicit-integer-downcast`), and what is float32 has 24 bits."""
    options: tuple[CompilerOption, ...] = ("compiler_workdir", "compiler_args", "compiler_python")
    core_variables = device.CORE_VARIABLES
    toolchain: device.Toolchain

    def unavailable(self) -> str | None:
        """Return why the toolchain cannot be used here, and how to install it; None if it can."""
        return device.unavailable_reason(self.toolchain)

    def requirements(self) -> tuple[Requirement, ...]:
        """Return torch. The toolchain is checked for each program: it may be in another interpreter here."""
        return (Requirement("torch", "torch", self.toolchain.torch),)

    def compile(
        self, program: ExportedProgram, bucket: Bucket | None, directory: Path, settings: CompileSettings = DEFAULTS
    ) -> None:
        """Trace the program for one bucket and save the ScriptModule, with weights only if they are embedded."""
        from ..exported_tensors import weights_of
        from .source_export import export_source
        from .toolchain import trace

        assert bucket is not None  # it is not polymorphic
        source = export_source(program, bucket)
        if not source.signature.inputs:
            raise CompileError(f"{self.name} cannot compile a program without inputs: tracing needs one")
        options = self.trace_options(settings)
        if settings.workdir is not None:
            options["compiler_workdir"] = str(settings.workdir)
        reply = trace(
            self.toolchain,
            source,
            weights_of(program),
            directory / device.PROGRAM,
            options,
            settings.python,
            strip_weights=not self.inlines_weights,
        )
        if reply.error:
            failure = f"{self.name} cannot compile for {bucket.batch} x {bucket.length}: {reply.error}: {reply.message}"
            raise CompileError("\n".join([failure, *self.compile_hints(reply, settings)]))
        device.write_artifact(directory, source, reply.versions)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load the program onto the first core of this process, or onto the CPU if emulation is enabled."""
        return self.load_on(0, directory, weights, host, threads)

    def simulation(self) -> str | None:
        """Return why the programs run on this CPU; None if they do not."""
        return device.emulation_reason(self.toolchain)

    @abstractmethod
    def trace_options(self, settings: CompileSettings) -> dict[str, Any]:
        """Return the keyword arguments for the toolchain's `trace`; values must be representable in JSON."""

    @abstractmethod
    def compile_hints(self, reply: CompileReply, settings: CompileSettings) -> Iterator[str]:
        """Yield advice for a failed compilation, one line each."""

    @abstractmethod
    def load_module(self, package: Any, path: Path, tensors: Weights, core: int) -> torch.nn.Module:
        """Load a ScriptModule onto a core; `package` is the toolchain, `tensors` are the module's own."""

    def load_on(
        self, core: int, directory: Path, weights: Weights, host: Mapping[str, str], threads: int
    ) -> LoadedProgram:
        """Load the program as `load` does, onto the core of this index."""
        program, made_by = device.read_artifact(directory)
        if self.simulation() is not None:
            return device.load_on_cpu(program, weights, threads)
        tensors = program.tensors(program.signature.pick_weights(weights))
        package = device.require_toolchain(self.toolchain, made_by["version"])
        set_torch_threads(threads)
        try:
            module = self.load_module(package, directory / device.PROGRAM, tensors, core)
        except Exception as error:
            raise LoadError(
                f"{directory} cannot be loaded onto Neuron core {core}: {error}. Check that there are at least as many "
                f"cores as workers (neuron-ls), and that no other process uses them"
            ) from error
        return device.module_program(program.signature, module)
