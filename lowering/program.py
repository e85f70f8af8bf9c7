"""Result of lowering, for the rest of packaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ..backends.exported_program import is_assertion
from ..bucketing.shapes import CarriedValue, ProgramRole, TensorSpec
from .exported_graph import aten_names, operator_name, user_inputs, value_source
from .exporter.shape_conditions import TimeBound

_LOOKS_FOR_NAN = aten_names("isnan nan_to_num nansum nanmedian isfinite")
_MOVES = aten_names("clone expand masked_fill permute reshape select slice squeeze to transpose unsqueeze view")
"""Operators whose results have values of their first argument."""


@dataclass(frozen=True)
class ChunkPrograms:
    """The model as programs over chunks of time.

    A chunk has any number of timesteps of every row; `lengths` counts each row's own timesteps within it, at least one.
    The carried values are the last inputs and the last outputs of `chunk`. `start` and `head` take the inputs without
    time and the lengths[B] of the whole sequences; None if there is nothing to compute.
    """

    chunk: torch.export.ExportedProgram
    """Program: inputs of the chunk, lengths, carried values -> outputs with time, carried values."""
    head: torch.export.ExportedProgram | None
    """Program: inputs without time, lengths, carried values -> outputs without time."""
    start: torch.export.ExportedProgram | None
    """Program: inputs without time, lengths -> the initial carried values that are no constants."""
    carried: tuple[CarriedValue, ...]
    reason_for_whole: str | None = None
    """The reason why whole sequences are run where nothing needs chunks; None: chunks save time."""

    @property
    def parts(self) -> dict[ProgramRole, torch.export.ExportedProgram]:
        """Programs that exist, by role."""
        ends: dict[ProgramRole, torch.export.ExportedProgram | None] = {"start": self.start, "head": self.head}
        return {"chunk": self.chunk, **{part: end for part, end in ends.items() if end is not None}}


@dataclass(frozen=True)
class LoweredModel:
    """The model as one function over padded tensors.

    `exported` takes the declared inputs in order, then lengths[B] int64 where `takes_lengths`, and returns a flat tuple
    of outputs. Batch and time are symbolic, recurrences are the abstract operators of `backends.masked`. Its parameters
    and persistent buffers are named as in the model's state dict; `constants` are all other tensors, by their names in
    the exported program.
    """

    exported: torch.export.ExportedProgram
    inputs: tuple[TensorSpec, ...]
    takes_lengths: bool
    outputs: tuple[TensorSpec, ...]
    constants: dict[str, torch.Tensor]
    chunked: ChunkPrograms | None
    """Chunk programs, if the model can be chunked; they are then served."""
    chunking_reason: str
    """Reason for people: the carried values, or the line that needs a whole sequence."""
    any_shape: bool
    """Whether batch and time may be any number, not only those in the range of the grid."""
    shortest: int = 1
    """Fewest timesteps of a request that the model takes in eager mode."""
    decided: frozenset[str] = frozenset()
    """Inputs whose declared range decided a branch: requests must be within it."""
    bound: TimeBound | None = None
    """Numbers of timesteps beyond the buckets for which the model does something else, if any."""

    @property
    def kind(self) -> Literal["sequence", "chunk"]:
        """Execution mode: whole sequences or chunks of time."""
        return "sequence" if self.chunked is None else "chunk"

    @property
    def parts(self) -> dict[ProgramRole, torch.export.ExportedProgram]:
        """Programs that are compiled and served, by role."""
        return {"sequence": self.exported} if self.chunked is None else self.chunked.parts


def unused_inputs(program: LoweredModel) -> tuple[str, ...]:
    """Return the names of inputs whose values the whole program does not use."""
    nodes = zip(program.inputs, user_inputs(program.exported), strict=False)  # lengths come after the inputs
    users = ((spec.name, node.users) for spec, node in nodes)
    return tuple(name for name, own in users if all(is_assertion(u) or "sym_size" in str(u.target) for u in own))


def inputs_searched_for_nan(program: LoweredModel) -> tuple[str, ...]:
    """Return the names of inputs in which the model looks for NaN, although requests with NaN are refused."""
    nodes = zip(program.inputs, user_inputs(program.exported), strict=False)
    refusing = {node: spec.name for spec, node in nodes if not spec.nan and "float" in spec.dtype}
    found = set()
    for node in program.exported.graph.nodes:
        name = operator_name(node)
        if name in _LOOKS_FOR_NAN or (name in ("aten.eq", "aten.ne") and node.args[0] is node.args[1]):
            found.add(refusing.get(value_source(node.args[0], _MOVES)))
    return tuple(name for name in refusing.values() if name in found)
