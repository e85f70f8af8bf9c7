"""AWS Inferentia2 and Trainium, by torch_neuronx.trace: a program for each bucket, without weights.

Not run on hardware: no such device was at hand. It was run against the documented contract of the tracing API.

The package is tied to torch 2.9, so the compiler may live in an interpreter of its own. Weights are kept apart from the
compiled code (`inline_weights_to_neff=False`) and emptied before the program is saved; at load they are the user's own
tensors again, by `replace_weights`. So an archive holds them once, and so does the host's memory; the device holds a
copy for each bucket, for its runtime shares them between instances of one program alone.

No state stays on the device (`input_output_aliases`): it would be gone with the worker. States go in and come out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
from .source_program import export_source, parameter_name
from .toolchain import CompileReply, Toolchain, trace

TOOLCHAIN = Toolchain(
    module="torch_neuronx",
    install=(
        "The real one comes from AWS's Neuron repository, for torch 2.9 and from Neuron SDK 2.31 or earlier: "
        'pip install "torch-neuronx==2.9.*" "neuronx-cc==2.*" --extra-index-url '
        "https://pip.repos.neuron.amazonaws.com"
    ),
)


class NeuronX:
    """One program for each bucket. Not run on hardware."""

    name = "neuronx"
    polymorphic = False
    any_shape = False
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    options: tuple[CompilerOption, ...] = ("compiler_workdir", "compiler_args", "compiler_python")
    inlines_weights = False
    core_variables = CORE_VARIABLES

    def core_environment(self, index: int) -> dict[str, str]:
        """Return the variable that assigns one NeuronCore."""
        return {CORE_VARIABLES[0]: str(index)}

    def unavailable(self) -> str | None:
        """Whether torch_neuronx is here, and not the placeholder of its name."""
        return unavailable_reason(TOOLCHAIN)

    def requirements(self) -> tuple[Requirement, ...]:
        """Torch. Which toolchain is needed stands with each program: it may not be that of this interpreter."""
        return (Requirement("torch", "torch", "2.9"),)

    def host(self) -> Mapping[str, str]:
        """Any machine with a device of the kind that `--target` names; the runtime tells others."""
        return {}

    def compile(
        self,
        program: torch.export.ExportedProgram,
        bucket: Bucket | None,
        directory: Path,
        settings: CompileSettings = DEFAULTS,
    ) -> None:
        """Trace the program for one bucket, and save the ScriptModule without its weights.

        With `--target` among the arguments nothing of it needs a device (`cpu_backend`).

        Raises:
            CompileError: no bucket is named, there is no toolchain, or it refuses the program.
        """
        if bucket is None:
            raise CompileError("neuronx compiles for one bucket at a time")
        plain = export_source(program, bucket)
        answer = trace(
            TOOLCHAIN,
            plain,
            weights_of(program),
            directory / PROGRAM,
            trace_options(settings),
            settings.python,
            strip_weights=True,
        )
        if answer.error:
            raise CompileError(_refusal(answer, bucket, settings.args))
        write_artifact(directory, plain, answer.versions)

    def load(self, directory: Path, weights: Weights, host: Mapping[str, str], threads: int) -> LoadedProgram:
        """Load the program onto this process's core, and the weights with it; or what stands in for it.

        Raises:
            LoadError: the toolchain or the device is missing, or the weights are others.
        """
        return self.load_on(0, directory, weights, host, threads)

    def cores(self) -> int:
        """Those that the runtime's environment leaves to this process: one, unless it says otherwise."""
        listed = os.environ.get("NEURON_RT_VISIBLE_CORES", "")
        if listed:
            ranges = [part.partition("-") for part in listed.split(",")]
            return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
        return int(os.environ.get("NEURON_RT_NUM_CORES", "1"))

    def load_on(
        self, core: int, directory: Path, weights: Weights, host: Mapping[str, str], threads: int
    ) -> LoadedProgram:
        """The same, on another core.

        Raises:
            LoadError: as `load`, or there is no such core.
        """
        compiled = read_artifact(directory)
        if self.simulation() is not None:
            return load_on_cpu(compiled, weights, threads)
        tensors = artifact_tensors(compiled, weights)
        engine = require_toolchain(TOOLCHAIN, compiled)
        torch.set_num_threads(threads)
        try:
            # One core, the same for code and weights: by default each load takes the next of those that are visible.
            with engine.neuron_cores_context(start_nc=core, nc_count=1):
                module = torch.jit.load(str(directory / PROGRAM))
            engine.replace_weights(module, {parameter_name(index): tensor for index, tensor in enumerate(tensors)})
            engine.move_trace_to_device(module, core)  # else they would go there again with every call
        except Exception as error:
            raise LoadError(
                f"{directory} cannot be loaded onto Neuron core {core}: {error}. Are there at least as many cores as "
                f"workers (neuron-ls), and is no other process on them?"
            ) from error
        return run_of(compiled.signature, module)

    def simulation(self) -> str | None:
        """The text of the programs on this CPU, where that is allowed and the toolchain is not here."""
        return emulation_reason(TOOLCHAIN)

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Why neuronx-cc cannot take a call; None where it can, as far as is documented."""
        return aws_operators.neuronx_refusal(node)


def trace_options(settings: CompileSettings) -> dict[str, Any]:
    """The keywords for `torch_neuronx.trace`."""
    words = [*settings.args, *_casting(settings)]
    options: dict[str, Any] = {"compiler_args": words, "inline_weights_to_neff": False}
    if settings.workdir is not None:
        options["compiler_workdir"] = str(settings.workdir)
    if _names(words, "--target"):
        options["cpu_backend"] = True
    return options


def _casting(settings: CompileSettings) -> list[str]:
    """What matrices are multiplied in. Left out, it depends on the compiler's version."""
    if _names(settings.args, "--auto-cast"):
        return []
    if settings.precision == "bfloat16":
        return ["--auto-cast", "matmult", "--auto-cast-type", "bf16"]
    return ["--auto-cast", "none"]


def _names(words: Sequence[str], flag: str) -> bool:
    """Whether a flag is among a command line's words.

    >>> _names(["--target=inf2"], "--target"), _names(["--target", "trn1"], "--target"), _names([], "--target")
    (True, True, False)
    """
    return any(word == flag or word.startswith(f"{flag}=") for word in words)


def _refusal(answer: CompileReply, bucket: Bucket, args: Sequence[str]) -> str:
    lines = [f"neuronx cannot compile for {bucket.batch} x {bucket.length}: {answer.error}: {answer.message}"]
    if not _names(args, "--target") and not list(Path("/dev").glob("neuron*")):
        lines.append(
            "This machine has no Neuron device. To compile without one, name the instances that will serve: "
            "compiler_args: --target inf2 (or trn1, trn1n, trn2)"
        )
    if "unsupported" in answer.message.lower() or "not supported" in answer.message.lower():
        lines.append(
            "`neuron-lstm analyze` shows which lines of the model need what the compiler does not have; with "
            "partitioner_config: {} that runs on the CPU"
        )
    return "\n".join(lines)
