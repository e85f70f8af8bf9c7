"""AWS Inferentia (Inf1), by torch_neuron.trace: a program for each bucket, with the weights embedded.

Not run on hardware: no such device was available. It was run against the documented contract of the tracing API.

The package requires torch 1.13. It cannot keep weights apart from the program, so other weights need other programs,
and an archive grows with its buckets.

Operators that the compiler does not support are refused (`fallback=False`): by default it would run them on the CPU,
call by call and without a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..interface import CompileSettings, Weights
from .base import NeuronBackend
from .device import Toolchain

if TYPE_CHECKING:
    from .toolchain import CompileReply


class Neuron(NeuronBackend):
    """Engine for Inf1. Not run on hardware."""

    name = "neuron"
    inlines_weights = True
    toolchain = Toolchain(
        module="torch_neuron",
        torch="1.13",
        install=(
            "The real one comes from AWS's Neuron repository, for torch 1.13 and Python up to 3.10; it is archived: "
            'pip install "torch-neuron==1.13.*" "neuron-cc[tensorflow]" --extra-index-url '
            "https://pip.repos.neuron.amazonaws.com"
        ),
    )

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Return why neuron-cc does not support a call; None if its published list has the operator."""
        from .operators import neuron_refusal

        return neuron_refusal(node)

    def trace_options(self, settings: CompileSettings) -> dict[str, Any]:
        """Return the keyword arguments for `torch_neuron.trace`."""
        # By default the compiler computes in bfloat16 wherever it can.
        configured = any(argument.startswith(("--fast-math", "--fp32-cast")) for argument in settings.args)
        exact = [] if configured or settings.precision == "bfloat16" else ["--fast-math", "none"]
        return {"compiler_args": [*settings.args, *exact], "fallback": False}

    def compile_hints(self, reply: CompileReply, settings: CompileSettings) -> Iterator[str]:
        """Yield how to run an unsupported operator on the CPU."""
        if reply.error == "AttributeError":  # the documented error for an unsupported operator
            yield (
                "The compiler for Inf1 does not support this operator; embeddings are not supported either. "
                "Run it on the CPU with partitioner_config: {}, or see `neuron-lstm analyze` for the lines of the "
                "model that use it"
            )

    def load_module(self, package: Any, path: Path, tensors: Weights, core: int) -> torch.nn.Module:
        """Load the ScriptModule; it has its weights."""
        module: torch.nn.Module = torch.jit.load(str(path))
        return module
