"""The model exported with symbolic batch and time, PackedSequence code replaced on the way."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..bucketing.shapes import Axis, BucketGrid, TensorSpec
from ..config.schema import NeuronLstmBlock, ServingConfig
from .errors import LoweringError, raising_line, source_suffix
from .packed_sequence import packed_sequence_mode, reject_packed_outputs


def bind_arguments(
    config: NeuronLstmBlock, tensors: Sequence[torch.Tensor], lengths: torch.Tensor | None
) -> dict[str, Any]:
    """The keyword arguments of one call of the user's forward().

    An input named `state.0` is the first element of a tuple argument `state`.
    """
    arguments: dict[str, Any] = {}
    for spec, tensor in zip(config.input_specs, tensors, strict=True):
        name, dot, position = spec.name.partition(".")
        if dot and position.isdigit():
            arguments[name] = (*arguments.get(name, ()), tensor)
        else:
            arguments[name] = tensor
    if config.lengths is not None and lengths is not None:
        arguments[config.lengths] = lengths
    return {**arguments, **config.model.forward}


def check_forward_signature(model: torch.nn.Module, config: NeuronLstmBlock) -> None:
    """Refuse a configuration whose names are not those of the model's forward().

    Raises:
        LoweringError: an argument is unknown, missing, or tuple elements are out of order.
    """
    signature = inspect.signature(model.forward)
    names = bind_arguments(config, [torch.empty(0)] * len(config.input_specs), torch.empty(0))
    try:
        signature.bind(**names)
    except TypeError as error:
        raise LoweringError(
            f"{type(model).__name__}.forward{signature} cannot be called with the arguments the configuration names "
            f"({', '.join(names)}): {error}. List forward()'s tensor arguments under `inputs`, its true lengths under "
            "`lengths`, and constant arguments under `model.forward`."
        ) from error
    positions: dict[str, int] = {}
    for spec in config.input_specs:
        name, dot, position = spec.name.partition(".")
        if dot and position.isdigit():
            if int(position) != positions.get(name, 0):
                raise LoweringError(
                    f"inputs: {spec.name} is out of order; a tuple's elements are listed as {name}.0, {name}.1, ..."
                )
            positions[name] = int(position) + 1


def example_tensor(spec: TensorSpec, batch: int, length: int) -> torch.Tensor:
    """A valid tensor of one input: zeros, which every vocabulary holds."""
    return torch.zeros(spec.sizes(batch, length), dtype=getattr(torch, spec.dtype))


def dynamic_shape(spec: TensorSpec, dims: Mapping[Axis, Any]) -> dict[int, Any]:
    """The varying dimensions of one input as torch.export wants them."""
    return {index: dims[size] for index, size in enumerate(spec.shape) if isinstance(size, str)}


# Sizes to trace with: different from each other, and unlikely to be a size of the model's own.
_EXAMPLE: dict[Axis, int] = {"batch": 3, "time": 7}
_CONSTRAINT = "Constraints violated"  # how the exporter's message begins when a size was fixed or bounded
_NEED_CELL = 8  # its place among the arguments of neuron_lstm::lstm


@dataclass(frozen=True)
class ModelExport:
    """An exported program whose outputs are the leaves of forward()'s answer, and what was learnt on the way."""

    exported: torch.export.ExportedProgram
    takes_lengths: bool
    output_tree: pytree.TreeSpec
    max_length: tuple[int, str | None] | None
    """The longest sequence pad_packed_sequence(total_length=...) allows, with its line."""


def export_model(model: torch.nn.Module, config: ServingConfig) -> ModelExport:
    """Export `model` with its abstract masked operators; parameters keep their names.

    Raises:
        LoweringError: packed data reaches another operator, or the graph depends on data or on a fixed size.
    """
    check_forward_signature(model, config)
    notes: dict[str, Any] = {}
    with replaced_forward(model, _traced_forward(model, config, notes)), _explained(model):
        exported = _export(model, config)
    _drop_unused(exported)
    return ModelExport(exported, _has("time", config), notes["output_tree"], notes["max_length"])


def _has(axis: Axis, config: ServingConfig) -> bool:
    return any(axis in spec.shape for spec in config.input_specs)


def _traced_forward(model: torch.nn.Module, config: ServingConfig, notes: dict[str, Any]) -> Any:
    """forward() over flat tensors, lengths last, to flat tensors; what is learnt goes to `notes`."""
    own_forward, has_time = model.forward, _has("time", config)

    def forward(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs, lengths = (arguments[:-1], arguments[-1]) if has_time else (arguments, None)
        with packed_sequence_mode(*_sizes(config, inputs, lengths), lengths) as mode:
            answers = own_forward(**bind_arguments(config, inputs, lengths))
            reject_packed_outputs(answers)
        leaves, notes["output_tree"] = pytree.tree_flatten(answers)
        notes["max_length"] = mode.max_length
        _refuse_other_leaves(leaves)
        return tuple(leaf for leaf in leaves if leaf is not None)

    names = [spec.name.replace(".", "_") for spec in config.input_specs] + (["sequence_lengths"] if has_time else [])
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    return forward


def _export(model: torch.nn.Module, config: ServingConfig) -> torch.export.ExportedProgram:
    """Export for any shape; for the shapes between the grid's smallest and largest where the model allows no more."""
    try:
        return _export_within(model, config, {"batch": (1, None), "time": (1, None)})
    except Exception as error:
        if _CONSTRAINT not in str(error):
            raise
    grid = config.grid
    # A dimension that varies needs a range of at least two sizes.
    ranges = {name: (sizes[0], max(sizes[-1], sizes[0] + 1)) for name, sizes in _sizes_of(grid).items()}
    return _export_within(model, config, ranges)


def _sizes_of(grid: BucketGrid) -> dict[Axis, tuple[int, ...]]:
    return {"batch": grid.batches, "time": grid.lengths}


def _export_within(
    model: torch.nn.Module, config: ServingConfig, ranges: Mapping[Axis, tuple[int, int | None]]
) -> torch.export.ExportedProgram:
    dims = {name: torch.export.Dim(name, min=low, max=high) for name, (low, high) in ranges.items()}
    sizes = {name: max(ranges[name][0], min(wish, ranges[name][1] or wish)) for name, wish in _EXAMPLE.items()}
    has_batch = _has("batch", config)
    tensors = [example_tensor(spec, sizes["batch"], sizes["time"]) for spec in config.input_specs]
    shapes = [dynamic_shape(spec, dims) for spec in config.input_specs]
    if _has("time", config):
        tensors.append(torch.ones(sizes["batch"] if has_batch else 1, dtype=torch.int64))
        shapes.append({0: dims["batch"]} if has_batch else {})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about its internals
        return torch.export.export(model, tuple(tensors), dynamic_shapes=tuple(shapes), strict=False)


def _drop_unused(exported: torch.export.ExportedProgram) -> None:
    """Stand-ins for packed data go, and an LSTM whose last cell state nobody reads need not compute it exactly."""
    graph = exported.graph
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.target is torch.ops.neuron_lstm.lstm.default and all(user.args[1] != 2 for user in node.users):
            node.update_arg(_NEED_CELL, False)
    exported.graph_module.recompile()


def _sizes(config: ServingConfig, inputs: Sequence[torch.Tensor], lengths: torch.Tensor | None) -> tuple[Any, Any]:
    """The (symbolic) batch and time of a call; batch 1 and no time where no input has them.

    Every tensor comes with symbols of its own: saying that they are equal makes one symbol of them.
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


def _refuse_other_leaves(leaves: Sequence[object]) -> None:
    for leaf in leaves:
        if leaf is not None and not isinstance(leaf, torch.Tensor):
            raise LoweringError(
                f"forward() returns a {type(leaf).__name__} ({leaf!r}); every answer must be a tensor (or None)"
            )


@contextmanager
def replaced_forward(model: torch.nn.Module, forward: Any) -> Iterator[None]:
    """Give this one model another forward(): wrapping it in a module would rename its parameters."""
    own = model.__dict__.get("forward")
    model.forward = forward
    try:
        yield
    finally:
        del model.forward
        if own is not None:
            model.forward = own


@contextmanager
def _explained(model: torch.nn.Module) -> Iterator[None]:
    """Turn what the exporter raises into the user's words and the user's line."""
    try:
        yield
    except LoweringError:
        raise
    except Exception as error:
        for cause in _causes(error):
            if isinstance(cause, LoweringError):
                raise cause from None
        line = next((found for cause in _causes(error) if (found := raising_line(cause))), None)
        raise LoweringError(_explain(model, error) + source_suffix(line)) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explain(model: torch.nn.Module, error: Exception) -> str:
    name, text = type(model).__name__, str(error)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    if "onstraint" in text or ("specializ" in text and "data-dependent" not in text):
        return (
            f"{name}.forward fixes the batch or time dimension (a loop over timesteps, an LSTMCell, a constant size, "
            "or code that reads a size as a number); use nn.LSTM or nn.GRU over the whole sequence. "
            f"The exporter says: {first}"
        )
    kinds = {type(cause).__name__ for cause in _causes(error)}
    if "data-dependent" in text or kinds & {"DataDependentOutputException", "DynamicOutputShapeException"}:
        return (
            f"{name}.forward's shapes or control flow depend on the values of its inputs, which a compiled program "
            f"cannot follow: {first}"
        )
    return f"{name}.forward could not be traced: {type(error).__name__}: {first}"
