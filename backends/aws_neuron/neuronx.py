"""AWS Inferentia2 and Trainium, by torch_neuronx.trace: a program for each bucket, without weights.

Not run on hardware: no such device was available. It was run against the documented contract of the tracing API.

The package requires torch 2.9. Weights are kept apart from the compiled code (`inline_weights_to_neff=False`) and
stripped before the program is saved; when it is loaded, `replace_weights` sets the user's own tensors. So an archive
holds them once, and so does the host's memory. The device holds a copy for each bucket, because its runtime shares them
only between instances of one program.

No state stays on the device (`input_output_aliases`): it would be lost with the worker. States are inputs and outputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..interface import CompileSettings, Weights
from .base import NeuronBackend
from .device import Toolchain

if TYPE_CHECKING:
    from .toolchain import CompileReply


class NeuronX(NeuronBackend):
    """Engine for Inf2 and Trainium. Not run on hardware."""

    name = "neuronx"
    toolchain = Toolchain(
        module="torch_neuronx",
        torch="2.9",
        install=(
            "The real one comes from AWS's Neuron repository, for torch 2.9 and from Neuron SDK 2.31 or earlier: "
            'pip install "torch-neuronx==2.9.*" "neuronx-cc==2.*" --extra-index-url '
            "https://pip.repos.neuron.amazonaws.com"
        ),
    )

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return why neuronx-cc does not support a call; None if it does, as far as AWS documents it."""
        from .operators import neuronx_refusal

        return neuronx_refusal(node)

    def cores(self) -> int:
        """Return the number of cores that the runtime's environment gives to this process; 1 by default."""
        listed = os.environ.get("NEURON_RT_VISIBLE_CORES", "")
        if listed:
            ranges = [part.partition("-") for part in listed.split(",")]
            return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
        return int(os.environ.get("NEURON_RT_NUM_CORES", "1"))

    def trace_options(self, settings: CompileSettings) -> dict[str, Any]:
        """Return the keyword arguments for `torch_neuronx.trace`.

        With `--target` among the arguments nothing needs a device (`cpu_backend`).
        """
        arguments = [*settings.args, *_cast_arguments(settings)]
        options: dict[str, Any] = {"compiler_args": arguments, "inline_weights_to_neff": False}
        if _has_flag(arguments, "--target"):
            options["cpu_backend"] = True
        return options

    def compile_hints(self, reply: CompileReply, settings: CompileSettings) -> Iterator[str]:
        """Yield how to compile without a device, and how to run an unsupported operator on the CPU."""
        if not _has_flag(settings.args, "--target") and not list(Path("/dev").glob("neuron*")):
            yield (
                "This machine has no Neuron device. To compile without one, name the instances that will serve: "
                "compiler_args: --target inf2 (or trn1, trn1n, trn2)"
            )
        if "unsupported" in reply.message.lower() or "not supported" in reply.message.lower():
            yield (
                "`neuron-lstm analyze` shows the lines of the model that use unsupported operators; with "
                "partitioner_config: {} these run on the CPU"
            )

    def load_module(self, package: Any, path: Path, tensors: Weights, core: int) -> torch.nn.Module:
        """Load the ScriptModule and its weights onto one core."""
        # One core, the same for code and weights: by default each load takes the next of those that are visible.
        with package.neuron_cores_context(start_nc=core, nc_count=1):
            module: torch.nn.Module = torch.jit.load(str(path))
        package.replace_weights(module, dict(tensors))
        package.move_trace_to_device(module, core)  # otherwise the weights would be copied there with every call
        return module


def _cast_arguments(settings: CompileSettings) -> list[str]:
    """Return the precision of matrix products. Its default depends on the compiler's version."""
    if _has_flag(settings.args, "--auto-cast"):
        return []
    if settings.precision == "bfloat16":
        return ["--auto-cast", "matmult", "--auto-cast-type", "bf16"]
    return ["--auto-cast", "none"]


def _has_flag(arguments: Sequence[str], flag: str) -> bool:
    """Whether a command line has a flag.

    >>> _has_flag(["--target=inf2"], "--target"), _has_flag(["--target", "trn1"], "--target"), _has_flag([], "--target")
    (True, True, False)
    """
    return any(argument == flag or argument.startswith(f"{flag}=") for argument in arguments)
