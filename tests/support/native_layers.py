"""The recurrent library of `native` on each instruction set of this host, and torch's layers."""

from __future__ import annotations

import copy
import platform
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchserve_neuron_lstm.backends import cpp_compiler
from torchserve_neuron_lstm.backends.interface import Precision
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.native.instruction_sets import InstructionSet, instruction_sets
from torchserve_neuron_lstm.backends.native.library import LayerStack, RecurrentLibrary, ThreadPool

CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
BELOW_FLOAT32: tuple[Precision, ...] = ("bfloat16", "int8")
"""The lower precisions of `native`."""
PORTABLE = "x86-64"
"""The instruction set without registers of 256 bits: the recurrent library on any other processor."""


def isas_here() -> list[str]:
    """The instruction sets that this processor has, and the portable one."""
    ours = [one.isa for one in instruction_sets() if one.runs_here()]
    return [*ours, PORTABLE] if platform.machine() == "x86_64" else ours


ISAS = [pytest.param(isa, marks=pytest.mark.xdist_group(f"kernel-{isa}")) for isa in isas_here()]
"""Parameters of tests: each instruction set is compiled once for all of them."""


def lower_here() -> list[InstructionSet]:
    """The instruction sets below float32 that this host runs."""
    return [one for one in all_of(*BELOW_FLOAT32) if one.runs_here()]


def all_of(*precisions: Precision) -> list[InstructionSet]:
    """The instruction sets of precisions below float32; none on a kind of machine without."""
    if platform.machine() != "x86_64":
        return []
    return [one for precision in precisions for one in instruction_sets(precision)]


@cache
def kernel(isa: str) -> RecurrentLibrary:
    """The recurrent library for this instruction set."""
    return library(InstructionSet(isa, frozenset()))


@cache
def library(instructions: InstructionSet) -> RecurrentLibrary:
    """The recurrent library with these options."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / instructions.library
        file.write_bytes(build._library(cpp_compiler.compiler(), build.SOURCE, instructions))
        return RecurrentLibrary(file)


@cache
def pool(isa: str, threads: int) -> ThreadPool:
    return ThreadPool(kernel(isa), threads)


@dataclass(frozen=True)
class Shape:
    """A stack of layers."""

    cell: str = "lstm"
    inputs: int = 5
    hidden: int = 6
    layers: int = 1
    directions: int = 1
    bias: bool = True
    projected: int = 0
    """Units of an LSTM's projection; 0: none."""

    def with_projections(self) -> list[Shape]:
        """This shape and, for an LSTM, those with projections of sizes around those of registers."""
        sizes = [size for size in (1, 4, 7, 16, 33, 65) if self.cell == "lstm" and size < self.hidden]
        return [self, *(replace(self, projected=size) for size in sizes)]

    def core(self) -> nn.RNNBase:
        """Torch's layers, with weights that are always the same."""
        options: dict[str, Any] = {"nonlinearity": self.cell[4:]} if self.cell.startswith("rnn") else {}
        options |= {"proj_size": self.projected} if self.projected else {}
        kind: Callable[..., nn.RNNBase] = {"lstm": nn.LSTM, "gru": nn.GRU}.get(self.cell, nn.RNN)
        torch.manual_seed(self.hidden * 31 + self.inputs)
        both = self.directions == 2
        sizes = (self.inputs, self.hidden, self.layers)
        return kind(*sizes, bias=self.bias, batch_first=True, bidirectional=both, **options)


@dataclass(frozen=True)
class Batch:
    """The inputs of layers: x[B, T, F], int64 lengths[B] and states [L*D, B, H]."""

    x: torch.Tensor
    lengths: torch.Tensor
    h_0: torch.Tensor
    c_0: torch.Tensor | None

    def row(self, index: int) -> Batch:
        """One row of the batch, without padding."""
        kept, length = slice(index, index + 1), int(self.lengths[index])
        c_0 = None if self.c_0 is None else self.c_0[:, kept].contiguous()
        return Batch(self.x[kept, :length], self.lengths[kept], self.h_0[:, kept].contiguous(), c_0)


def batch_for(shape: Shape, lengths: list[int], steps: int, garbage: float = 0.0, scale: float = 1.0) -> Batch:
    """A batch of random values, with `garbage` on the padding."""
    generator = torch.Generator().manual_seed(sum(lengths) + steps)
    x = torch.randn(len(lengths), steps, shape.inputs, generator=generator) * scale
    sizes = (shape.layers * shape.directions, len(lengths))
    h_0 = torch.randn(*sizes, shape.projected or shape.hidden, generator=generator)
    c_0 = torch.randn(*sizes, shape.hidden, generator=generator)
    real = torch.tensor(lengths, dtype=torch.int64)
    padding = torch.arange(steps)[None, :] >= real[:, None]
    x = torch.where(padding[:, :, None], garbage, x)
    return Batch(x, real, h_0, c_0 if shape.cell == "lstm" else None)


def stack_of(shape: Shape, core: nn.RNNBase, threads: ThreadPool) -> LayerStack:
    """The recurrent library's layers with the weights of torch's."""
    weights = [core.get_parameter(name).detach() for name in core._flat_weights_names]
    return LayerStack(threads, shape.cell, weights, shape.layers, shape.directions)


def answers_of(stack: LayerStack, batch: Batch, *, time_major: bool = False) -> list[torch.Tensor]:
    """The outputs y, h_n and, for an LSTM, c_n."""
    y, h_n, c_n = stack.run(batch.x, batch.lengths, batch.h_0, batch.c_0, time_major=time_major)
    assert y is not None
    return [y, h_n] if batch.c_0 is None else [y, h_n, c_n]


@torch.no_grad()
def alone(core: nn.RNNBase, batch: Batch, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """The answers of torch in `dtype` for each row without its padding, concatenated."""
    core, steps = copy.deepcopy(core).to(dtype), batch.x.shape[1]
    rows = [_alone(core, batch.row(index), dtype) for index in range(len(batch.x))]
    y = torch.cat([nn.functional.pad(row[0], (0, 0, 0, steps - row[0].shape[1])) for row in rows])
    return [y, *(torch.cat(kind, 1) for kind in list(zip(*rows, strict=True))[1:])]


def _alone(core: nn.RNNBase, row: Batch, dtype: torch.dtype) -> list[torch.Tensor]:
    states = [state.to(dtype) for state in (row.h_0, row.c_0) if state is not None]
    if row.x.shape[1] == 0:  # torch refuses no timesteps; the library returns the given states
        directions = 2 if core.bidirectional else 1
        return [torch.zeros(1, 0, directions * states[0].shape[2], dtype=dtype), *states]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
        y, last = core(row.x.to(dtype), tuple(states) if len(states) == 2 else states[0])
    return [y, *(last if len(states) == 2 else [last])]


def error(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest difference, relative to numbers above 1. NaN if only one of them has it."""
    worst = 0.0
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert torch.equal(mine.isnan(), other.isnan())
        off = (mine.double() - other.double()) / other.double().abs().clamp(min=1)
        off = torch.where(mine.double() == other.double(), 0.0, off)
        worst = max(worst, float(off.nan_to_num(0.0, float("inf")).abs().max())) if off.numel() else worst
    return worst
