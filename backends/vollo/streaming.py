"""A model one timestep at a time on Vollo, which keeps its state: the fastest there is, for one stream at a time.

The state can neither be read nor put back, so a stream ends with its process, and each needs a program of its own.
Where streams shall outlive a process, or share an accelerator, package the model with `streaming:`, which keeps states
outside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..interface import CompileError, LoadError
from ..signature import WrongInput, dtype_name
from .compiler import accelerator_config, build_program
from .engine import Vollo, VolloCall, VolloContext, no_accelerator_reason

_PROGRAM = "streaming.vollo"


class StreamingProgram:
    """One stream on one accelerator, or on the compiler's VM where there is none."""

    def __init__(self, program: Any, estimate_us: float | None = None) -> None:
        """Begin a stream. `program` is a `vollo_compiler.Program` that was compiled for streaming."""
        self._program = program
        self.estimate_us = program.compute_duration_per_inference_us() if estimate_us is None else estimate_us
        """Microseconds that one timestep computes, by the compiler's own count."""
        self.input_shape = tuple(program.model_input_shape(0, 0))
        """The shape of one timestep."""
        self.simulation = Vollo().simulation()
        """What stands in for the accelerator here; None where there is one."""
        self._call: VolloCall = self._started()

    @classmethod
    def compile(cls, model: torch.nn.Module, example: torch.Tensor, config: str, time_dim: int = 0) -> StreamingProgram:
        """The program of a model for timesteps of `example`'s shape without `time_dim`.

        The model takes one tensor and answers in one, both with time; `config` is the name of an accelerator.

        Raises:
            CompileError: the compiler is not installed, does not know the accelerator or does not take the model, or
                the program does not fit.
        """
        missing = Vollo().unavailable()
        if missing is not None:
            raise CompileError(missing)
        built = build_program(
            model.eval(), [example], accelerator_config(["--config", config]), streaming_axis=time_dim
        )
        return cls(built.program, built.estimate_us)

    @classmethod
    def load(cls, directory: Path) -> StreamingProgram:
        """What `save` wrote.

        Raises:
            LoadError: there is nothing of it.
        """
        from vollo_compiler import Program

        try:
            return cls(Program.load_bytes((directory / _PROGRAM).read_bytes()))
        except OSError as error:
            raise LoadError(f"{directory} holds no streaming program: {error}") from error

    def save(self, directory: Path) -> None:
        """Write the program, without the stream's state, which nothing can read."""
        (directory / _PROGRAM).write_bytes(self._program.save_bytes())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """The next timestep float32[*takes] to its answer.

        Raises:
            WrongInput: another shape or dtype.
        """
        if x.dtype is not torch.float32 or tuple(x.shape) != self.input_shape:
            raise WrongInput(
                f"a timestep is {dtype_name(x)} {list(x.shape)}, but the program was compiled for float32 "
                f"{list(self.input_shape)}"
            )
        (answer,) = self._call([x.detach().contiguous()])
        return answer

    def restart(self) -> None:
        """Begin another stream, from zeros."""
        self._call = self._started()

    def _started(self) -> VolloCall:
        if no_accelerator_reason() is None:
            return VolloContext(self._program).call
        vm = self._program.to_vm()
        return lambda inputs: [torch.from_numpy(vm.run([one.numpy() for one in inputs]))]
