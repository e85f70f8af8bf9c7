"""Second way of lowering: one request is traced alone, and its graph is run on ragged batches.

It is exact by construction where the first way has no proof: other rows and padding do not exist in the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..bucketing.shapes import TensorSpec
from ..config.schema import ServingConfig
from .errors import DecisiveRefusal, LoweringError, UnfitBuckets, UnknownLoop, explained_export_errors, is_misfit
from .excluded_shapes import include_excluded_shapes
from .exporter.export import ModelExport, forward_name
from .exporter.shape_conditions import ShapeConditions, batch_sizes_of
from .exporter.timestep_branches import BranchOnTimesteps, branch_error
from .loops.rolled import export_rolled
from .one_request.comparison import Comparison, DiffersAtLength
from .one_request.longer_requests import export_longer, last_form, naming_fewest
from .one_request.single_request import SingleExport
from .outputs import output_names, with_vocabularies
from .ragged.program import RaggedProgram, export_ragged, has_time
from .shortest import shortest_length

_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)


def lower_request(
    model: torch.nn.Module, config: ServingConfig
) -> tuple[ModelExport, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Export the model through the trace of one request; the program, the inputs and the outputs.

    Loops over timesteps are recognised if the trace fails because of them.

    Raises:
        LoweringError: the model cannot be traced alone, an operator has no rule, or the program differs from the model.
    """
    with explained_export_errors(f"{forward_name(model)}, traced for one request,"):
        _require_batch(config.input_specs)
        shortest = shortest_length(model, config)
        single = _export(model, config, shortest)
        try:
            return _lower(model, config, single)
        except DiffersAtLength as error:
            longer = _first_included(single, error.length, config)
            if longer is None or (longer > config.grid.lengths[0] and not error.in_size):
                named: LoweringError = branch_error(forward_name(model), single.branches, error.length) or error
                if longer == last_form(single.lengths_to_compare, config.longest):
                    named = naming_fewest(named, longer, config.longest)
                raise named from error.__cause__
        return _lower(model, config, _export(model, config, longer))


def _first_included(single: SingleExport, length: int, config: ServingConfig) -> int | None:
    """Return the fewest timesteps from `length` on that the exporter includes, if it excludes `length`.

    A model with `y[:, -3:]` has an output of another size for a request of 2 timesteps; one that pads a short request
    before a reflection has other values.
    """
    if length not in single.lengths_to_compare:
        return None
    return next((n for n in range(length, config.longest + 1) if n not in single.lengths_to_compare), None)


def _export(model: torch.nn.Module, config: ServingConfig, shortest: int) -> SingleExport:
    """Trace one request; where that fails, trace it with its loops over timesteps recognised."""
    refusal: LoweringError
    try:
        return export_longer(model, config, shortest)
    except BranchOnTimesteps as error:
        refusal = error  # a loop may have a branch on its last timestep
    except DecisiveRefusal:
        raise
    except LoweringError as error:
        refusal = error
    try:
        return export_rolled(model, config, shortest)
    except UnknownLoop as error:
        if isinstance(refusal, BranchOnTimesteps) and refusal.on_remainder:
            raise refusal from error
        raise
    except DecisiveRefusal:
        raise
    except LoweringError as error:
        if is_misfit(error):
            raise
        raise refusal from error


def _lower(
    model: torch.nn.Module, config: ServingConfig, single: SingleExport
) -> tuple[ModelExport, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    inputs, shortest = config.input_specs, single.shortest
    program = export_ragged(single, inputs, single.timesteps, shortest)
    names = output_names(single.output_tree, program.layouts)
    if config.outputs is not None and len(config.outputs) != len(names):
        raise LoweringError(
            f"outputs: {len(config.outputs)} names ({', '.join(config.outputs)}) for the {len(names)} tensors "
            f"forward() returns ({', '.join(names)}). Write one name for each, or leave `outputs` out"
        )
    outputs = tuple(
        TensorSpec(name, dtype, shape)
        for name, (dtype, shape) in zip(config.outputs or names, program.layouts, strict=True)
    )
    inputs = with_vocabularies(program.exported, inputs, single.vocabularies)
    comparison = Comparison(model, config, program.exported, inputs, outputs)
    include_excluded_shapes(comparison, shortest)
    _check_buckets(program, config)
    longest = config.grid.lengths[-1]
    compared = {shortest - 1 + length for length in _LENGTHS} | single.lengths_to_compare
    lengths = sorted(length for length in compared if shortest <= length <= longest)
    comparison.check(program.exported.module(), lengths, min(max(lengths) + 3, longest))
    model_export = ModelExport(
        program.exported, has_time(inputs), single.output_tree, None, shortest, single.decided, single.bound
    )
    return model_export, inputs, outputs


def _require_batch(inputs: Sequence[TensorSpec]) -> None:
    if any(spec.batch_dim is None for spec in inputs):
        raise LoweringError("a request can be traced alone only if every input has a batch dimension")


def _check_buckets(program: RaggedProgram, config: ServingConfig) -> None:
    """Refuse buckets that the exporter's conditions exclude.

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
