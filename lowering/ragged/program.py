"""Export of a ragged run as a program over padded batches, as the other programs of lowering are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from ...backends.signature import dtype_name
from ...bucketing.shapes import Axis, DType, TensorSpec
from ..errors import explained_export_errors
from ..export import (
    CONSTRAINT,
    drop_unused,
    dynamic_shape,
    example_tensor,
    export_quietly,
    with_parameter_names,
)
from ..program_tensors import holder_of, tensors_by_placeholder
from ..single_request import SingleExport
from .batched import run_ragged
from .sizes import SizeExpr, is_ragged, written
from .value import Value

_ROWS = 3


@dataclass(frozen=True)
class RaggedProgram:
    """The program, and the layout of each output: the batch in the place of the first dimension of size 1."""

    exported: torch.export.ExportedProgram
    layouts: tuple[tuple[DType, tuple[int | Axis | str, ...]], ...]


def export_ragged(
    single: SingleExport, inputs: Sequence[TensorSpec], timesteps: int, shortest: int = 1
) -> RaggedProgram:
    """Export the graph of one request as a program: inputs padded to [B, T, ...], lengths[B] -> outputs.

    `timesteps` are those to trace with; a batch has `shortest` or more.

    Raises:
        LoweringError: an operator has no rule over ragged batches; names the user's line.
    """
    exported = single.exported
    module = exported.graph_module
    names = [str(name) for name in exported.graph_signature.user_inputs]
    found: list[Value] = []
    holder = holder_of(exported)

    def forward(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *padded, lengths = arguments
        time = next(t.shape[s.time_dim] for s, t in zip(inputs, padded, strict=True) if s.time_dim is not None)
        tensors = tensors_by_placeholder(exported, holder)
        values = run_ragged(module, list(zip(names, inputs, strict=True)), tensors, padded, lengths, time)
        found[:] = values
        return tuple(_contiguous_item(value) for value in values)

    holder.forward = with_parameter_names(forward, [*(s.name.replace(".", "_") for s in inputs), "sequence_lengths"])
    with explained_export_errors("a batch of requests", dynamic_shapes=True):
        program = _export(holder, inputs, timesteps, shortest)
    drop_unused(program)
    return RaggedProgram(program, tuple(_layout(value) for value in found))


def _export(
    holder: torch.nn.Module, inputs: Sequence[TensorSpec], timesteps: int, shortest: int
) -> torch.export.ExportedProgram:
    """Export for every number of rows and timesteps; if strides forbid the smallest, for all above them."""
    try:
        return _export_from(holder, inputs, timesteps, torch.export.Dim("time", min=shortest))
    except Exception as error:
        if CONSTRAINT not in str(error):
            raise
    return _export_from(holder, inputs, timesteps, torch.export.Dim.AUTO)


def _export_from(
    holder: torch.nn.Module, inputs: Sequence[TensorSpec], timesteps: int, time: Any
) -> torch.export.ExportedProgram:
    dims: dict[Axis, Any] = {"batch": torch.export.Dim("batch", min=1), "time": time}
    tensors = [example_tensor(spec, _ROWS, timesteps) for spec in inputs]
    shapes = [dynamic_shape(spec, dims) for spec in inputs]
    return export_quietly(holder, [*tensors, torch.ones(_ROWS, dtype=torch.int64)], [*shapes, {0: dims["batch"]}])


def _batch_place(sizes: Sequence[SizeExpr]) -> int | None:
    """Return the dimension of one request's output that is its batch: the first of size 1."""
    return next((dim for dim, size in enumerate(sizes) if size == 1), None)


def _contiguous_item(value: Value) -> torch.Tensor:
    place = _batch_place(value.sizes)
    tensor = value.tensor if place is None else value.tensor.squeeze(place + 1).movedim(0, place)
    return tensor.contiguous()


def _layout(value: Value) -> tuple[DType, tuple[int | Axis | str, ...]]:
    place = _batch_place(value.sizes)
    own = [_written(size) for dim, size in enumerate(value.sizes) if dim != place]
    own.insert(place or 0, "batch")
    return cast(DType, dtype_name(value.tensor)), tuple(own)


def _written(size: SizeExpr) -> int | Axis | str:
    """Return a size as the manifest has it: a number, `time`, or an expression of `time`."""
    return written(size) if is_ragged(size) else int(size)
