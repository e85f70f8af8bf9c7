"""AWS Inferentia (Inf1), by torch_neuron.trace: a program for each bucket, with the weights in it.

Not run on hardware: no such device was at hand. It was run against the documented contract of the tracing API.

The package is tied to torch 1.13, so the compiler may live in an interpreter of its own. It cannot keep weights apart:
each program holds them, so other weights need other programs, and an archive grows with its buckets.

What the compiler does not take is refused (`fallback=False`): left to itself it would run such operators on the CPU,
call by call and without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...bucketing.shapes import Bucket
from ..interface import (
    DEFAULTS,
    CompileError,
    CompilerOption,
    CompileSettings,
    LoadedProgram,
    LoadError,
    Precision,
    Requirement,
    Weights,
)
from ..signature import weights_of
from . import operators as aws_operators
from .device import (
    CORE_VARIABLES,
    PROGRAM,
    artifact_tensors,
    emulation_reason,
    load_on_cpu,
    read_artifact,
    require_toolchain,
    run_of,
    unavailable_reason,
    write_artifact,
)
from .source_program import export_source
from .toolchain import CompileReply, Toolchain, trace

TOOLCHAIN = Toolchain(
    module="torch_neuron",
    install=(
        "The real one comes from AWS's Neuron repository, for torch 1.13 and Python up to 3.10; it is archived: "
        'pip install "torch-neuron==1.13.*" "neuron-cc[tensorflow]" --extra-index-url '
        "https://pip.repos.neuron.amazonaws.com"
    ),
)


class Neuron:
    """One program for each bucket. Not run on hardware."""

    name = "neuron"
    polymorphic = False
    any_shape = False
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    options: tuple[CompilerOption, ...] = ("compiler_workdir", "compiler_args", "compiler_python")
    inlines_weights = True
    core_variables = CORE_VARIABLES

    def core_environment(self, index: int) -> dict[str, str]:
        """Return the variable that assigns one NeuronCore."""
        return {CORE_VARIABLES[0]: str(index)}

    def unavailable(self) -> str | None:
        """Whether torch_neuron is here, and not the placeholder of its name."""
        return unavailable_reason(TOOLCHAIN)

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch. Which toolchain is needed stands with each program: it may not be that of this interpreter."""
        return (Requirement("torch", "torch", "1.13"),)

    def host(self) -> Mapping[str, str]:
        """Any machine with a device."""
        return {}

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Trace the program for one bucket, and save the ScriptModule with its weights.

        Raises:
            CompileError: no bucket is named, there is no toolchain, or it refuses the program.
        """
        if bucket is None:
            raise CompileError("neuron compiles for one bucket at a time")
        plain = export_source(program, bucket)
        answer = trace(
            TOOLCHAIN,
            plain,
            weights_of(program),
            directory / PROGRAM,
            trace_options(settings),
            settings.python,
            strip_weights=False,
        )
        if answer.error:
            raise CompileError(_refusal(answer, bucket))
        write_artifact(directory, plain, answer.versions)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load the program onto this process's core, or what stands in for it.

        `weights` must be those that it was compiled with.

        Raises:
            LoadError: the toolchain or the device is missing, or the weights are of other shapes.
        """
        compiled = read_artifact(directory)
        if self.simulation() is not None:
            return load_on_cpu(compiled, weights, threads)
        artifact_tensors(compiled, weights)
        require_toolchain(TOOLCHAIN, compiled)
        torch.set_num_threads(threads)
        try:
            module = torch.jit.load(str(directory / PROGRAM))
        except Exception as error:
            raise LoadError(
                f"{directory} cannot be loaded onto a Neuron core: {error}. Are there at least as many cores as "
                f"workers (neuron-ls), and is no other process on them?"
            ) from error
        return run_of(compiled.signature, module)

    def simulation(self) -> str | None:
        """The text of the programs on this CPU, where that is allowed and the toolchain is not here."""
        return emulation_reason(TOOLCHAIN)

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Why neuron-cc cannot take a call; None where it can, by its published list."""
        return aws_operators.neuron_refusal(node)


def trace_options(settings: CompileSettings) -> dict[str, Any]:
    """The keywords for `torch_neuron.trace`."""
    # By default the compiler computes in bfloat16 whatever can be.
    chosen = any(word.startswith(("--fast-math", "--fp32-cast")) for word in settings.args)
    exact = [] if chosen or settings.precision == "bfloat16" else ["--fast-math", "none"]
    options: dict[str, Any] = {"compiler_args": [*settings.args, *exact], "fallback": False}
    if settings.workdir is not None:
        options["compiler_workdir"] = str(settings.workdir)
    return options


def _refusal(answer: CompileReply, bucket: Bucket) -> str:
    text = f"neuron cannot compile for {bucket.batch} x {bucket.length}: {answer.error}: {answer.message}"
    if answer.error != "AttributeError":  # the documented word for an operator that the compiler does not take
        return text
    return (
        f"{text}\nThe compiler for Inf1 does not take this operator; embeddings are among those. Have it run on the "
        f"CPU with partitioner_config: {{}}, or see `neuron-lstm analyze` for the lines of the model that need it"
    )
