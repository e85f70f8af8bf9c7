"""All steps of lowering a model, in the order of its decisions."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.utils._sympy.numbers import int_oo

from ..backends.exported_tensors import mark_time
from ..bucketing.shapes import TensorSpec
from ..config.schema import ServingConfig
from .chunks.carry_analysis import NotChunkable
from .chunks.chunk_check import check_chunked_equivalence
from .chunks.chunking import build_chunk_programs
from .eager_call import eager_failure, needs_two_rows, relative_lengths_error, shortest_length
from .errors import (
    FinalRefusal,
    InputsDoNotFit,
    LoweringError,
    UnfitBuckets,
    UnknownLoop,
    UnknownRange,
    Unproved,
    explained_export_errors,
    is_misfit,
    is_unexplained,
    mentions_source_line,
    source_suffix,
)
from .excluded_shapes import include_excluded_shapes, served_batches
from .exporter.export import ModelExport, export_model, forward_name
from .exporter.shape_conditions import ShapeConditions, batch_sizes_of
from .exporter.timestep_branches import BranchOnTimesteps, branch_error
from .loops.families import export_rolled
from .one_request.comparison import Comparison, DiffersAtLength
from .one_request.longer_requests import export_longer, last_form, naming_fewest
from .one_request.single_request import SingleExport
from .outputs import output_names, output_specs, with_vocabularies
from .program import ChunkPrograms, LoweredModel
from .proof.differential import reject_padding_sensitive_outputs
from .proof.padding_taint import find_padding_leak
from .proof.row_mixing import find_row_mixing
from .proof.timestep_rules import Tainted
from .ragged.batched import RaggedProgram, export_ragged, has_time
from .refused_calls import random_call, reject_random_operators, reject_scripted


def lower(model: torch.nn.Module, config: ServingConfig) -> LoweredModel:
    """Lower `model` (in eval mode) to programs over padded tensors that equal it on each request alone.

    Raises:
        LoweringError: names the line of the model and a way out.
    """
    model.eval()
    reject_scripted(model)
    if not config.model.batched:
        return _lower_request(model, config, None)
    first = _attempt(model, config)
    if isinstance(first, LoweringError):  # the second way starts outside of the handler: its errors have no context
        return _lower_request(model, config, first)
    if first.padding == "exact_lengths" or _needs_finite_padding(first, config):
        with contextlib.suppress(LoweringError):
            return _lower_request(model, config, None)
    return first


def _needs_finite_padding(program: LoweredModel, config: ServingConfig) -> bool:
    """Whether infinite padding reaches an output of a program that was tested with finite padding."""
    if program.padding_proved:
        return False
    try:
        reject_padding_sensitive_outputs(program.exported, program.inputs, config.grid, scale=float("inf"))
    except LoweringError:
        return True
    return False


def _attempt(model: torch.nn.Module, config: ServingConfig) -> LoweredModel | LoweringError:
    """Lower through a trace of a padded batch, or return the refusal.

    Raises:
        InputsDoNotFit: no other way could take the inputs either.
    """
    try:
        return lower_batch(model, config)
    except InputsDoNotFit:
        raise
    except LoweringError as error:
        return error


def _says_more(second: LoweringError, first: LoweringError) -> bool:
    """Whether the second refusal names a line, and the first none or only a missing proof."""
    return (
        mentions_source_line(second)
        and (not mentions_source_line(first) or isinstance(first, Unproved))
        and not isinstance(first, UnknownRange)
    )


def _lower_request(model: torch.nn.Module, config: ServingConfig, refusal: LoweringError | None) -> LoweredModel:
    """Lower through the trace of one request.

    If that fails too, the first refusal stands, unless the second one says more.

    Raises:
        LoweringError: neither way works.
    """
    try:
        traced, inputs, outputs = lower_request(model, config)
    except LoweringError as error:
        if (random := random_call(model, config)) is not None:
            raise random from error
        if isinstance(error.__cause__, InputsDoNotFit) and (failure := eager_failure(model, config)) is not None:
            raise failure from error  # whatever the trace says, a layer did not take the declared inputs
        if isinstance(error, FinalRefusal):
            raise
        stated = error if refusal is None or _says_more(error, refusal) else refusal
        explained = _explained(stated, error, model, config)
        if explained is error:
            raise
        raise explained from error
    reject_random_operators(traced.exported)
    reason = "one request was traced alone, so that neither padding nor other rows can reach an output"
    if traced.shortest > 1:
        reason += (
            f". Requests of fewer than {traced.shortest} timesteps are refused: the model fails on them, or "
            "branches on their number of timesteps"
        )
    any_shape = _any_shape(traced) and _holds_everywhere(traced, inputs, config)
    return _lowered(traced, inputs, outputs, _Padding("masked", True, reason), any_shape=any_shape)


def _explained(
    refusal: LoweringError, second: LoweringError, model: torch.nn.Module, config: ServingConfig
) -> LoweringError:
    """Return the refusal, or that the model fails in eager mode too, where no other words explain it."""
    if isinstance(refusal, UnknownRange):
        return relative_lengths_error(model, config) or needs_two_rows(model, config) or refusal
    if not is_unexplained(refusal) or is_misfit(refusal):
        return refusal
    last = refusal if mentions_source_line(refusal) else second
    return relative_lengths_error(model, config) or eager_failure(model, config) or last


def lower_batch(model: torch.nn.Module, config: ServingConfig) -> LoweredModel:
    """Lower through a trace of a padded batch. Raises `LoweringError`: names the line of the model and a way out."""
    traced = export_model(model, config)
    _check_max_length(traced, config)
    reject_random_operators(traced.exported)
    inputs = with_vocabularies(traced.exported, config.input_specs)
    outputs = output_specs(traced, inputs, config.outputs)
    if (mixing := find_row_mixing(traced.exported, inputs)) is not None:
        raise Unproved(
            f"{mixing.operator} may let one request of a batch change the output of another"
            f"{source_suffix(mixing.line)}: compute it for each row of the batch by itself"
        )
    leak = find_padding_leak(traced.exported, inputs, traced.takes_lengths)
    if leak is not None and config.knows_padding:
        reject_padding_sensitive_outputs(traced.exported, inputs, config.grid)
    exact = leak is not None and not config.knows_padding
    if not exact:
        traced = replace(traced, shortest=shortest_length(model, config))
    padding = _Padding("exact_lengths" if exact else "masked", leak is None, _padding_reason(leak, exact))
    return _lowered(traced, inputs, outputs, padding, any_shape=_any_shape(traced))


@dataclass(frozen=True)
class _Padding:
    """Decision about padding: the mode, whether it was proved, and the reason."""

    mode: Literal["masked", "exact_lengths"]
    proved: bool
    reason: str


def _lowered(
    traced: ModelExport,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    padding: _Padding,
    *,
    any_shape: bool,
) -> LoweredModel:
    chunked, chunking_reason = _chunk(traced, inputs, outputs, padding)
    for program in (traced.exported, *(() if chunked is None else (chunked.chunk,))):
        _mark_time_dims(program, inputs)
    return LoweredModel(
        exported=traced.exported,
        inputs=inputs,
        takes_lengths=traced.takes_lengths,
        outputs=outputs,
        constants=_constants(traced.exported),
        padding=padding.mode,
        padding_proved=padding.proved,
        padding_reason=padding.reason,
        chunked=chunked,
        chunking_reason=chunking_reason,
        any_shape=any_shape,
        shortest=traced.shortest,
        decided=traced.decided,
        bound=traced.bound,
    )


def _chunk(
    traced: ModelExport, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], padding: _Padding
) -> tuple[ChunkPrograms | None, str]:
    """Build the chunk programs, or say why the model runs over whole sequences."""
    if traced.shortest > 1:
        return None, f"the model takes {traced.shortest} timesteps or more at once"
    if padding.mode == "exact_lengths":
        return None, "padding would reach an output, so only whole sequences are run"
    try:
        chunked = build_chunk_programs(traced.exported, inputs, traced.takes_lengths)
        check_chunked_equivalence(traced.exported, chunked, inputs, outputs)
    except NotChunkable as error:
        return None, str(error)
    names = ", ".join(value.spec.name for value in chunked.carried)
    return chunked, f"each chunk of time passes {names} to the next"


def _mark_time_dims(program: torch.export.ExportedProgram, inputs: tuple[TensorSpec, ...]) -> None:
    """Mark the time dimension of the declared inputs: a program without a recurrence does not show it."""
    named = zip(
        program.graph_signature.user_inputs, inputs, strict=False
    )  # lengths and carried values come after these
    mark_time(program, {str(name): spec.shape.index("time") for name, spec in named if "time" in spec.shape})


def _any_shape(traced: ModelExport) -> bool:
    """Whether the exporter found no bound of batch or time but that of the model itself."""
    bounds = traced.exported.range_constraints.values()
    return all(bound.lower <= traced.shortest and bound.upper == int_oo for bound in bounds)


def _holds_everywhere(traced: ModelExport, inputs: tuple[TensorSpec, ...], config: ServingConfig) -> bool:
    """Whether the exporter's conditions hold for all batches and lengths that are served."""
    conditions = ShapeConditions(traced.exported, batch_sizes_of(inputs))
    lengths = range(traced.shortest, config.longest + 1)
    return all(conditions.holds(batch, time) for batch in served_batches(config) for time in lengths)


def _check_max_length(traced: ModelExport, config: ServingConfig) -> None:
    if traced.max_length is not None and config.grid.lengths[-1] > traced.max_length[0]:
        total, line = traced.max_length
        raise LoweringError(
            f"buckets.length goes up to {config.grid.lengths[-1]}, but pad_packed_sequence pads to total_length={total}"
            f"{source_suffix(line)}: no sequence can be longer than that"
        )


def _constants(exported: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Collect the tensors outside the state dict: constants of the code and non-persistent buffers."""
    return {
        name: value.detach().contiguous()
        for name, value in exported.constants.items()
        if isinstance(value, torch.Tensor) and name not in exported.state_dict
    }


def _padding_reason(leak: Tainted | None, exact: bool) -> str:
    if leak is None:
        return "proved on the graph: padding cannot reach an output"
    if exact:
        return f"padding would reach an output through {leak}; only exact bucket lengths are served"
    return f"tested, not proved on the graph ({leak}): different padding changed no output"


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
    except FinalRefusal:
        raise
    except LoweringError as error:
        refusal = error
    try:
        return export_rolled(model, config, shortest)
    except UnknownLoop as error:
        if isinstance(refusal, BranchOnTimesteps) and refusal.on_remainder:
            raise refusal from error
        raise
    except FinalRefusal:
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
    names = output_names(single.output_tree, program.layouts, config.outputs)
    outputs = tuple(TensorSpec(name, dtype, shape) for name, (dtype, shape) in zip(names, program.layouts, strict=True))
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
