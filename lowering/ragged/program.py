"""Export of a ragged run as a program over padded batches, as the other programs of lowering are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from ...backends.signature import dtype_name
from ...bucketing.shapes import Axis, DType, TensorSpec
from ..errors import explained_export_errors
from ..exporter.export import (
    CONSTRAINT,
    drop_unused,
    dynamic_shape,
    example_tensor,
    export_quietly,
    with_parameter_names,
)
from ..exporter.program_tensors import holder_of, tensors_by_placeholder
from ..one_request.single_request import SingleExport
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

    A program of inputs without time takes no lengths.

    `timesteps` are those to trace with; a batch has `shortest` or more.

    Raises:
        LoweringError: an operator has no rule over ragged batches; names the user's line.
    """
    exported = single.exported
    module = exported.graph_module
    names = [str(name) for name in exported.graph_signature.user_inputs]
    found: list[Value] = []
    holder = holder_of(exported)

    timed = next((number for number, spec in enumerate(inputs) if spec.time_dim is not None), None)

    def forward(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if timed is None:
            padded, lengths, time = list(arguments), _one_timestep(inputs[0], arguments[0]), 1
        else:
            *padded, lengths = arguments
            time = padded[timed].shape[cast(int, inputs[timed].time_dim)]
        tensors = tensors_by_placeholder(exported, holder)
        values = run_ragged(module, list(zip(names, inputs, strict=True)), tensors, padded, lengths, time)
        found[:] = values
        return tuple(_contiguous_item(value) for value in values)

    names_of_lengths = [] if timed is None else ["sequence_lengths"]
    holder.forward = with_parameter_names(forward, [*(s.name.replace(".", "_") for s in inputs), *names_of_lengths])
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
    if not has_time(inputs):
        return export_quietly(holder, tensors, shapes)
    return export_quietly(holder, [*tensors, torch.ones(_ROWS, dtype=torch.int64)], [*shapes, {0: dims["batch"]}])


def has_time(inputs: Sequence[TensorSpec]) -> bool:
    """Whether an input has a time dimension."""
    return any(spec.time_dim is not None for spec in inputs)


def _one_timestep(spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor:
    """Return the lengths of a batch whose inputs have no time: 1 for each row."""
    return torch.ones(tensor.shape[cast(int, spec.batch_dim)], dtype=torch.int64)


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
