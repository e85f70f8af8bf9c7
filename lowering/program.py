"""What lowering hands to the rest of packaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ..bucketing.shapes import CarriedValue, ProgramRole, TensorSpec


@dataclass(frozen=True)
class ChunkPrograms:
    """The model as programs over pieces of time.

    A piece has any number of timesteps of every row; `lengths` counts each row's own within it, at least one. Whatever
    is carried is an input of `chunk` and its last outputs. `start` and `head` take the inputs without time and the
    whole lengths[B]; None where there is nothing to compute.
    """

    chunk: torch.export.ExportedProgram
    """Inputs of the piece, lengths, carried values -> the outputs that have time, carried values."""
    head: torch.export.ExportedProgram | None
    """Inputs without time, lengths, carried values -> the outputs without time."""
    start: torch.export.ExportedProgram | None
    """Inputs without time, lengths -> those carried values that do not begin as a number."""
    carried: tuple[CarriedValue, ...]

    @property
    def parts(self) -> dict[ProgramRole, torch.export.ExportedProgram]:
        """The programs there are."""
        ends: dict[ProgramRole, torch.export.ExportedProgram | None] = {"start": self.start, "head": self.head}
        return {"chunk": self.chunk, **{part: end for part, end in ends.items() if end is not None}}


@dataclass(frozen=True)
class LoweredModel:
    """The model as one function over padded tensors.

    `exported` takes the declared inputs in order, then lengths[B] int64 where `takes_lengths`, and returns a flat tuple
    of outputs. Batch and time are symbolic, recurrences are the abstract operators of `backends.masked`. Its parameters
    and persistent buffers are named as in the model's state dict; `constants` are the tensors besides, by the name the
    exported program gives them.
    """

    exported: torch.export.ExportedProgram
    inputs: tuple[TensorSpec, ...]
    takes_lengths: bool
    outputs: tuple[TensorSpec, ...]
    constants: dict[str, torch.Tensor]
    padding: Literal["masked", "exact_lengths"]
    """Whether requests may be padded to a bucket, or only bucket lengths themselves are served."""
    padding_reason: str
    """Why, for people: what was proved, or which line of the model padding would reach."""
    chunked: ChunkPrograms | None
    """The model in pieces of time, where it can be cut; it is served so."""
    chunking_reason: str
    """Why, for people: what goes on from piece to piece, or which line needs a whole sequence."""
    any_shape: bool
    """Whether batch and time may be any number, not only what the grid spans."""

    @property
    def kind(self) -> Literal["sequence", "chunk"]:
        """Whether it is served over whole sequences or in pieces of time."""
        return "sequence" if self.chunked is None else "chunk"

    @property
    def parts(self) -> dict[ProgramRole, torch.export.ExportedProgram]:
        """What is compiled and served."""
        return {"sequence": self.exported} if self.chunked is None else self.chunked.parts
