"""Export of the model with symbolic batch and time; PackedSequence code is replaced during tracing."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch.fx.proxy import TracerBase
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils import _pytree as pytree

from ...backends.exported_program import quiet
from ...bucketing.padding import zeros
from ...bucketing.shapes import Axis, BucketGrid, TensorSpec
from ...config.forward import MaskConfig
from ...config.schema import NeuronLstmBlock, ServingConfig
from ..errors import InputsDoNotFit, explained_export_errors, reject_non_tensors
from ..packing.packed_placeholder import reject_packed_outputs
from ..packing.packed_sequence import packed_sequence_mode
from .arguments import mask_of_lengths, nested_arguments, plain_outputs
from .model_attributes import replaced, restored_attributes, with_listed_weights
from .shape_conditions import ShapeConditions, TimeBound, batch_sizes_of, find_time_bound
from .timestep_branches import Branch, noted_branches


def bind_arguments(
    config: NeuronLstmBlock,
    tensors: Sequence[torch.Tensor],
    lengths: torch.Tensor | None,
    make_mask: Callable[[MaskConfig, torch.Tensor, Any], torch.Tensor] = mask_of_lengths,
) -> dict[str, Any]:
    """Build the keyword arguments of one call of the user's forward().

    An input named `state.0` is the first element of a tuple argument `state`; lengths may be an element too.
    """
    named: dict[str, Any] = {spec.name: tensor for spec, tensor in zip(config.input_specs, tensors, strict=True)}
    if lengths is not None:
        named.update(_packed(config, named, lengths))
    if config.lengths is not None and lengths is not None:
        named.update(dict.fromkeys(config.lengths.names, _converted(lengths, config.lengths.type)))
    if config.mask is not None and lengths is not None:
        named[config.mask.name] = make_mask(config.mask, lengths, _timesteps(config, tensors))
    return nested_arguments({**named, **config.model.forward})


def _converted(lengths: torch.Tensor, kind: Literal["tensor", "numpy", "list"]) -> Any:
    """Return lengths as forward() takes them."""
    return lengths if kind == "tensor" else lengths.numpy() if kind == "numpy" else lengths.tolist()


def _packed(config: NeuronLstmBlock, tensors: Mapping[str, torch.Tensor], lengths: torch.Tensor) -> dict[str, Any]:
    """Return the inputs that forward() takes as packed sequences."""
    return {
        name: pack_padded_sequence(tensors[name], lengths, entry.shape[0] == "batch", enforce_sorted=False)
        for name, entry in config.inputs.items()
        if entry.packed
    }


def _timesteps(config: NeuronLstmBlock, tensors: Sequence[torch.Tensor]) -> Any:
    pairs = zip(config.input_specs, tensors, strict=True)
    return next(tensor.shape[spec.time_dim] for spec, tensor in pairs if spec.time_dim is not None)


def check_forward_signature(model: torch.nn.Module, config: NeuronLstmBlock) -> None:
    """Refuse a configuration whose names differ from the arguments of the model's forward().

    Raises:
        InputsDoNotFit: an argument is unknown or missing.
        LoweringError: a tuple lacks elements.
    """
    signature = inspect.signature(model.forward)
    tensors = [example_tensor(spec, 1, 1) for spec in config.input_specs]
    names = bind_arguments(config, tensors, torch.ones(1, dtype=torch.int64))
    try:
        signature.bind(**names)
    except TypeError as error:
        raise InputsDoNotFit(
            f"{forward_name(model)}{signature} cannot be called with the arguments the configuration names "
            f"({', '.join(names)}): {error}. List the tensor arguments of forward() under `inputs`, its true lengths "
            "under `lengths`, and constant arguments under `model.forward`."
        ) from error


def forward_name(model: torch.nn.Module) -> str:
    """Return the name of the code that a call of the model runs, as in Tagger.forward or Tagger.infer."""
    own = model.__dict__.get("forward")
    return f"{type(model).__name__}.{getattr(own, '__name__', 'forward')}"


def example_tensor(spec: TensorSpec, batch: int, length: int) -> torch.Tensor:
    """Create a valid tensor of one input: zeros, or the least value of its range."""
    tensor = zeros(spec, length, batch)
    low, high = spec.value_range or (0, 0)
    return tensor if low <= 0 <= high else tensor.fill_(low)


def dynamic_shape(spec: TensorSpec, dims: Mapping[Axis, Any]) -> dict[int, Any]:
    """Map the dynamic dimensions of one input to their symbols, as torch.export expects them."""
    return {index: dims[axis] for axis in AXES for index, size in enumerate(spec.shape) if size == axis}


AXES: tuple[Axis, ...] = get_args(Axis)
EXAMPLE_SIZES: dict[Axis, int] = {"batch": 3, "time": 7}
"""Sizes to trace with: different from each other, and unlikely to be a size in the model."""
NEED_CELL = 8
"""Position of `need_cell` among the arguments of neuron_lstm::lstm."""
Ranges = Mapping[Axis, tuple[int, int | None]]
"""The smallest and the largest size of each symbolic dimension; None: there is no largest one."""
CONSTRAINT = "Constraints violated"  # the start of the exporter's message when a size was fixed or bounded
CONSTANT = "specialized it to be a constant"  # the part of it when a size was fixed: a range changes nothing


@dataclass(frozen=True)
class ModelExport:
    """An exported program with the flattened outputs of forward(), and facts found during tracing."""

    exported: torch.export.ExportedProgram
    takes_lengths: bool
    output_tree: pytree.TreeSpec
    max_length: tuple[int, str | None] | None
    """The longest sequence that pad_packed_sequence(total_length=...) allows, with its line."""
    shortest: int = 1
    """Fewest timesteps of a request that the model takes."""
    decided: frozenset[str] = frozenset()
    """Inputs whose declared range decided a branch."""
    bound: TimeBound | None = None
    """Numbers of timesteps beyond the buckets for which the program does not hold; None: it holds for all."""


def export_model(model: torch.nn.Module, config: ServingConfig) -> ModelExport:
    """Export `model` with the abstract masked operators; parameters keep their names.

    Raises:
        LoweringError: packed data reaches another operator, or the graph depends on data or on a fixed size.
    """
    check_forward_signature(model, config)
    notes: dict[str, Any] = {}
    branches: list[Branch] = []
    name = forward_name(model)
    forward = _traced_forward(model, config, notes)
    explained = explained_export_errors(name, dynamic_shapes=True)
    with replaced_forward(model, forward), explained, noted_branches(branches):
        exported = _export(model, config)
    drop_unused(exported)
    bound = _bound(exported, branches, config) if _has("time", config) else None
    return ModelExport(exported, _has("time", config), notes["output_tree"], notes["max_length"], bound=bound)


def _bound(
    exported: torch.export.ExportedProgram, branches: Sequence[Branch], config: ServingConfig
) -> TimeBound | None:
    conditions = ShapeConditions(exported, batch_sizes_of(config.input_specs))
    return find_time_bound(conditions, branches, rows=config.grid.batches[0], longest=config.longest)


def _has(axis: Axis, config: ServingConfig) -> bool:
    return any(axis in spec.shape for spec in config.input_specs)


def _traced_forward(model: torch.nn.Module, config: ServingConfig, notes: dict[str, Any]) -> Any:
    """Wrap forward() to take flat tensors, lengths last, and to return flat tensors. `notes` gets the facts found."""
    own_forward, has_time = model.forward, _has("time", config)

    def forward(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs, lengths = (arguments[:-1], arguments[-1]) if has_time else (arguments, None)
        with packed_sequence_mode(*_sizes(config, inputs, lengths), lengths) as batch:
            outputs = plain_outputs(own_forward(**bind_arguments(config, inputs, lengths)))
            reject_packed_outputs(outputs)
        leaves, notes["output_tree"] = pytree.tree_flatten(outputs)
        notes["max_length"] = batch.max_length
        reject_non_tensors("forward()", leaves, allow_none=True)
        return tuple(leaf for leaf in leaves if leaf is not None)

    names = [spec.name.replace(".", "_") for spec in config.input_specs] + (["sequence_lengths"] if has_time else [])
    return with_parameter_names(forward, names)


def with_parameter_names(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Give a function of `*tensors` these parameters: the exporter names the inputs after them."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # which `inspect` reads
    return function


def _export(model: torch.nn.Module, config: ServingConfig) -> torch.export.ExportedProgram:
    """Export for every shape, or, if the model does not allow it, for shapes within the range of the grid.

    A session has more timesteps than any bucket. So their number is bounded only if the model bounds it.
    """
    # A dynamic dimension needs a range of at least two sizes.
    grid = {name: (sizes[0], max(sizes[-1], sizes[0] + 1)) for name, sizes in _sizes_of(config.grid).items()}
    exported = _export_unless_bounded(model, config, {"batch": (1, None), "time": (1, None)})
    if exported is None:
        exported = _export_unless_bounded(model, config, {**grid, "time": (grid["time"][0], None)})
    return _export_within(model, config, grid) if exported is None else exported


def _export_unless_bounded(
    model: torch.nn.Module, config: ServingConfig, ranges: Ranges
) -> torch.export.ExportedProgram | None:
    """Export for sizes within ranges; None if the model does not allow all of them."""
    try:
        return _export_within(model, config, ranges)
    except Exception as error:
        if CONSTRAINT not in str(error) or CONSTANT in str(error):
            raise
    return None


def _sizes_of(grid: BucketGrid) -> dict[Axis, tuple[int, ...]]:
    return {"batch": grid.batches, "time": grid.lengths}


def _export_within(model: torch.nn.Module, config: ServingConfig, ranges: Ranges) -> torch.export.ExportedProgram:
    dims = {name: torch.export.Dim(name, min=low, max=high) for name, (low, high) in ranges.items()}
    sizes = {name: max(ranges[name][0], min(wish, ranges[name][1] or wish)) for name, wish in EXAMPLE_SIZES.items()}
    has_batch = _has("batch", config)
    tensors = [example_tensor(spec, sizes["batch"], sizes["time"]) for spec in config.input_specs]
    shapes = [dynamic_shape(spec, dims) for spec in config.input_specs]
    if _has("time", config):
        tensors.append(torch.ones(sizes["batch"] if has_batch else 1, dtype=torch.int64))
        shapes.append({0: dims["batch"]} if has_batch else {})
    return export_quietly(model, tensors, shapes)


def export_quietly(
    module: torch.nn.Module, tensors: Sequence[torch.Tensor], dynamic_shapes: Sequence[Any] | None = None
) -> torch.export.ExportedProgram:
    """Export a module without gradients and without the exporter's warnings about its internals."""
    with torch.no_grad(), quiet(), _lines_of_all_functions():
        shapes = None if dynamic_shapes is None else tuple(dynamic_shapes)
        return torch.export.export(module, tuple(tensors), dynamic_shapes=shapes, strict=False)


def drop_unused(exported: torch.export.ExportedProgram) -> None:
    """Remove the placeholders of packed data. Mark LSTMs whose last cell state is unused, which need not be exact."""
    graph = exported.graph
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.target is torch.ops.neuron_lstm.lstm.default and all(user.args[1] != 2 for user in node.users):
            node.update_arg(NEED_CELL, False)
    exported.graph_module.recompile()


def _sizes(config: ServingConfig, inputs: Sequence[torch.Tensor], lengths: torch.Tensor | None) -> tuple[Any, Any]:
    """Return the (symbolic) batch and time of a call; batch 1 and no time if no input has them.

    Every tensor comes with its own symbols: asserting that they are equal unifies them.
    """
    found: dict[str, Any] = {}
    for spec, tensor in zip(config.input_specs, inputs, strict=True):
        for size, name in zip(tensor.shape, spec.shape, strict=True):
            if isinstance(name, str):
                torch._check(size == found.setdefault(name, size))
    batch = found.get("batch", 1)
    if lengths is not None:
        torch._check(lengths.shape[0] == batch)
    return batch, found.get("time")


@contextmanager
def replaced_forward(model: torch.nn.Module, forward: Any) -> Iterator[None]:
    """Replace forward() of this one model: wrapping the model in a module would rename its parameters.

    Attributes that a forward() sets are restored too.
    """
    with restored_attributes(model):
        model.forward = with_listed_weights(model, forward)
        yield


@contextlib.contextmanager
def _lines_of_all_functions() -> Iterator[None]:
    """In this context, keep the lines of every function that `forward()` calls, such as other methods."""
    original = getattr(TracerBase, "_filter_traceback_frames", None)
    if original is None:  # an older torch keeps them
        yield
        return

    def filtered(self: Any, frames: Any) -> Any:
        before = getattr(self, "_record_forward_stack_traces_only", False)
        self._record_forward_stack_traces_only = False
        try:
            return original(self, frames)
        finally:
            self._record_forward_stack_traces_only = before

    with replaced(TracerBase, "_filter_traceback_frames", filtered):
        yield
