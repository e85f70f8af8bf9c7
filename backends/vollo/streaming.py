"""Streaming program: one timestep at a time on Vollo, which keeps the state.

This is the fastest way, but for one stream at a time. The state can be neither read nor restored, so a stream ends with
its process, and each stream needs its own program. For streams that outlive a process or share an accelerator, package
the model with `streaming:`, which keeps the states outside of the device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..interface import CompileError, LoadError
from ..signature import WrongInput, dtype_name
from .compiler import accelerator_config, build_program
from .engine import Vollo, VolloCall, VolloContext, call_of_vm, no_accelerator_reason

_PROGRAM = "streaming.vollo"


class StreamingProgram:
    """A stream on one accelerator, or on the compiler's VM if there is none."""

    def __init__(self, program: Any) -> None:
        """Start a stream. `program` is a `vollo_compiler.Program` that was compiled for streaming."""
        self._program = program
        self.estimate_us = float(program.compute_duration_per_inference_us())
        """Compiler's estimate of the compute time of one timestep in microseconds."""
        self.input_shape = tuple(program.model_input_shape(0, 0))
        """Shape of one timestep."""
        self.simulation = Vollo().simulation()
        """Emulation of the accelerator on this host, and its reason; None if there is an accelerator."""
        self._call: VolloCall = self._start()

    @classmethod
    def compile(cls, model: torch.nn.Module, example: torch.Tensor, config: str, time_dim: int = 0) -> StreamingProgram:
        """Compile a model for timesteps of `example`'s shape without `time_dim`.

        The model has one input and one output, both with time; `config` is the name of an accelerator.

        Raises `CompileError`: the compiler is not installed, the accelerator is unknown, or the model is not supported
        or does not fit.
        """
        if (missing := Vollo().unavailable()) is not None:
            raise CompileError(missing)
        accelerator = accelerator_config(["--config", config])
        return cls(build_program(model.eval(), [example], accelerator, streaming_axis=time_dim))

    @classmethod
    def load(cls, directory: Path) -> StreamingProgram:
        """Load a program that `save` wrote. Raises `LoadError`: the directory has no such program."""
        from vollo_compiler import Program

        try:
            return cls(Program.load_bytes((directory / _PROGRAM).read_bytes()))
        except OSError as error:
            raise LoadError(f"{directory} has no streaming program: {error}") from error

    def save(self, directory: Path) -> None:
        """Write the program without the stream's state, which cannot be read."""
        (directory / _PROGRAM).write_bytes(self._program.save_bytes())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the output of the next timestep float32[*input_shape].

        Raises `WrongInput`: the timestep has another shape or dtype.
        """
        if x.dtype is not torch.float32 or tuple(x.shape) != self.input_shape:
            raise WrongInput(
                f"a timestep is {dtype_name(x)} {list(x.shape)}, but the program was compiled for float32 "
                f"{list(self.input_shape)}"
            )
        (output,) = self._call([x.detach().contiguous()])
        return output

    def restart(self) -> None:
        """Start another stream, from a zero state."""
        self._call = self._start()

    def _start(self) -> VolloCall:
        return call_of_vm(self._program) if no_accelerator_reason() else VolloContext(self._program).call
