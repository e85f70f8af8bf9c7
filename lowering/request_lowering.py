"""Second way of lowering: one request is traced alone, and its graph is run on ragged batches.

It is exact by construction where the first way has no proof: other rows and padding do not exist in the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..bucketing.shapes import TensorSpec
from ..config.schema import ServingConfig
from .differential import random_padding, random_tensor
from .eager_call import call_eagerly
from .errors import LoweringError, UnfitBuckets, UnknownLoop, explained_export_errors
from .export import ModelExport, bind_arguments, forward_name
from .loops.rolled import export_rolled
from .outputs import output_names, with_vocabularies
from .ragged.program import RaggedProgram, export_ragged
from .shape_conditions import ShapeConditions, batch_sizes_of
from .shortest import shortest_length
from .single_request import SingleExport, example_timesteps, export_single

_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)
_TOLERANCE = 1e-4  # far above rounding errors, far below the effect of padding of size 1e3
_ANY_ID = 8
"""Bound of the ids for an input of unknown vocabulary."""


def lower_request(
    model: torch.nn.Module, config: ServingConfig
) -> tuple[ModelExport, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Export the model through the trace of one request; the program, the inputs and the outputs.

    Loops over timesteps are followed where the trace fails for their sake.

    Raises:
        LoweringError: the model cannot be traced alone, an operator has no rule, or the program differs from the model.
    """
    with explained_export_errors(f"{forward_name(model)}, traced for one request,"):
        _require_batch_and_time(config.input_specs)
        shortest = shortest_length(model, config)
        return _lower(model, config, _export(model, config, shortest), shortest)


def _export(model: torch.nn.Module, config: ServingConfig, shortest: int) -> SingleExport:
    """Trace one request; where that fails, trace it with its loops over timesteps recognised."""
    refusal: LoweringError
    try:
        return export_single(model, config, shortest)
    except LoweringError as error:
        refusal = error
    try:
        return export_rolled(model, config, shortest)
    except UnknownLoop:
        raise
    except LoweringError as error:
        raise refusal from error


def _lower(
    model: torch.nn.Module, config: ServingConfig, single: SingleExport, shortest: int
) -> tuple[ModelExport, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    inputs = config.input_specs
    program = export_ragged(single, inputs, example_timesteps(config), shortest)
    names = output_names(single.output_tree, list(range(len(program.layouts))))  # type: ignore[arg-type]
    if config.outputs is not None and len(config.outputs) != len(names):
        raise LoweringError(
            f"outputs: {len(config.outputs)} names ({', '.join(config.outputs)}) for the {len(names)} tensors "
            f"forward() returns ({', '.join(names)})"
        )
    outputs = tuple(
        TensorSpec(name, dtype, shape)
        for name, (dtype, shape) in zip(config.outputs or names, program.layouts, strict=True)
    )
    inputs = with_vocabularies(program.exported, inputs)
    _check_buckets(program, config)
    longest = config.grid.lengths[-1]
    lengths = {shortest - 1 + length for length in _LENGTHS} | single.lengths_to_compare
    _check(model, config, program, inputs, outputs, sorted(n for n in lengths if shortest <= n <= longest))
    return ModelExport(program.exported, True, single.output_tree, None, shortest), inputs, outputs


def _require_batch_and_time(inputs: Sequence[TensorSpec]) -> None:
    if not any("time" in spec.shape for spec in inputs) or any(spec.batch_dim is None for spec in inputs):
        raise LoweringError("a request can be traced alone only if every input has a batch dimension and one has time")


def _check_buckets(program: RaggedProgram, config: ServingConfig) -> None:
    """Refuse buckets in which the exporter does not vouch for the program.

    Raises:
        UnfitBuckets: names the buckets, and the lengths that are possible.
    """
    conditions = ShapeConditions(program.exported, batch_sizes_of(config.input_specs))
    grid = config.grid
    refused = sorted({t for b in grid.batches for t in grid.lengths if not conditions.holds(b, t)})
    if refused:
        possible = [t for t in grid.lengths if t not in refused]
        lengths = ", ".join(map(str, refused))
        raise UnfitBuckets(
            f"the model cannot be run in buckets of {lengths} timesteps: leave them out of buckets.length"
            + (f", and keep {', '.join(map(str, possible))}, in which shorter requests are served too" * bool(possible))
        )


def _check(
    model: torch.nn.Module,
    config: ServingConfig,
    program: RaggedProgram,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    lengths: Sequence[int],
) -> None:
    """Compare a ragged batch, with large numbers in its padding, with each request alone in eager mode.

    Raises:
        LoweringError: an output differs, or the model fails on a request.
    """
    longest = config.grid.lengths[-1]
    rng = torch.Generator().manual_seed(0)
    requests = [
        [random_tensor(spec, spec.item_sizes(length), rng, unknown_ids=_ANY_ID) for spec in inputs]
        for length in lengths
    ]
    padded = [
        _padded(spec, [r[i] for r in requests], min(max(lengths) + 3, longest), rng) for i, spec in enumerate(inputs)
    ]
    with torch.no_grad():
        results = program.exported.module()(*padded, torch.tensor(lengths))
        for row, (length, request) in enumerate(zip(lengths, requests, strict=True)):
            batch = [t.unsqueeze(cast(int, s.batch_dim)) for t, s in zip(request, inputs, strict=True)]
            alone = _alone(model, config, batch, length)
            for spec, ours, theirs in zip(outputs, results, alone, strict=True):
                _compare(spec, ours, theirs, row, length)


def _alone(
    model: torch.nn.Module, config: ServingConfig, batch: Sequence[torch.Tensor], length: int
) -> list[torch.Tensor]:
    try:
        answer = call_eagerly(model, bind_arguments(config, batch, torch.tensor([length])))
    except Exception as error:
        raise LoweringError(
            f"{type(model).__name__} fails in eager mode on one request of {length} timesteps: "
            f"{type(error).__name__}: {error}"
        ) from error
    leaves = torch.utils._pytree.tree_leaves(answer)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _compare(spec: TensorSpec, ours: torch.Tensor, theirs: torch.Tensor, row: int, length: int) -> None:
    part = ours.select(cast(int, spec.batch_dim), row)
    sizes = spec.item_sizes(length)
    for dim, size in enumerate(sizes):
        part = part.narrow(dim, 0, size)
    own = theirs if theirs.dim() == part.dim() else theirs.select(cast(int, spec.batch_dim), 0)
    if own.shape != part.shape:
        raise LoweringError(f"output {spec.name} has the shape {list(own.shape)} for {length} timesteps, not {sizes}")
    if not torch.allclose(part.double(), own.double(), _TOLERANCE, _TOLERANCE, equal_nan=True):
        raise LoweringError(f"output {spec.name} of a batch differs from that of a request alone ({length} timesteps)")


def _padded(spec: TensorSpec, items: Sequence[torch.Tensor], time: int, rng: torch.Generator) -> torch.Tensor:
    tensor = random_padding(spec, spec.sizes(len(items), time), rng)
    for row, item in enumerate(items):
        part = tensor.select(cast(int, spec.batch_dim), row)
        for dim in spec.item_time_dims:
            part = part.narrow(dim, 0, item.shape[dim])
        part.copy_(item)
    return tensor
