"""Programs of recurrent layers as the engine `cuda` writes them, loaded on a double of a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from graph_device import GraphDevice
from recurrent import BATCH, TIME, exported, ragged_batch

from torchserve_neuron_lstm.backends.cuda.engine import Cuda, load_on_device
from torchserve_neuron_lstm.backends.cuda.graph_program import GraphProgram
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import CompileSettings, Rehearsal
from torchserve_neuron_lstm.bucketing.shapes import Bucket, ProgramRole
from torchserve_neuron_lstm.lowering.program import LoweredModel

BUCKETS = (Bucket(1, 4), Bucket(BATCH, TIME), Bucket(2 * BATCH, TIME))


class Stepping(torch.nn.Module):
    """A chunk program: x[B, t, F], lengths[B], h[B, H] -> y[B, t, H], h[B, H]."""

    def __init__(self) -> None:
        super().__init__()
        self.core = torch.nn.GRU(5, 6, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = list(self.core._flat_weights)
        y, h_n = torch.ops.neuron_lstm.rnn(x, lengths, h[None], weights, "gru", True, 1, False)
        return y, h_n[0]


def compiled(program: torch.export.ExportedProgram, directory: Path, **settings: Any) -> Path:
    """The program as the engine writes it, in a directory of its own."""
    directory.mkdir(exist_ok=True)
    Cuda().compile(program, None, directory, CompileSettings(**settings))
    return directory


def compiled_chunks(
    program: LoweredModel, directory: Path
) -> tuple[Mapping[ProgramRole, Path], Mapping[str, torch.Tensor]]:
    """The programs of chunks, each in a directory of its own, and their weights."""
    assert program.chunked is not None, program.chunking_reason
    parts = program.chunked.parts
    weights = {name: tensor for part in parts.values() for name, tensor in weights_of(part).items()}
    return {role: compiled(part, directory / role) for role, part in parts.items()}, weights


def rehearsals(*keys: str) -> list[Rehearsal[str]]:
    """A call of each program, which takes x[B, T, F] and lengths[B], in each bucket."""
    return [rehearsal(key, bucket) for key in keys for bucket in BUCKETS]


def rehearsal(key: str, bucket: Bucket) -> Rehearsal[str]:
    """A call of one program in a bucket."""
    return Rehearsal(bucket, lambda programs: programs[key](ragged_batch(0.0, *bucket)))


def captured_model(
    module: torch.nn.Module, directory: Path, device: GraphDevice | None = None, **settings: Any
) -> GraphProgram:
    """A model over x[B, T, F] and lengths[B], compiled, and captured in every bucket on a double of a GPU."""
    program = exported(module, *ragged_batch(0.0))
    return loaded(device or GraphDevice(), compiled(program, directory / "program", **settings), weights_of(program))


def loaded(device: GraphDevice, directory: Path, weights: Mapping[str, torch.Tensor]) -> GraphProgram:
    """The program, captured in every bucket on a device."""
    program = load_on_device(device, {"sequence": directory}, weights, rehearsals("sequence"))["sequence"]
    assert isinstance(program, GraphProgram)
    return program
