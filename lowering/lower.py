"""All steps of lowering a model, in the order of its decisions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch.utils._sympy.numbers import int_oo

from ..backends.exported_tensors import mark_time
from ..bucketing.shapes import TensorSpec
from ..config.schema import ServingConfig
from .chunks.carry_analysis import CountsTimesteps, NotChunkable
from .chunks.chunking import build_chunk_programs, check_chunked_equivalence
from .eager_call import batch_places, eager_failure, reject_swapped_axes, relative_lengths_error, shortest_length
from .errors import InputsDoNotFit, LoweringError, PartialTrace, Unexplained, UnknownLoop, explained_export_errors
from .exported_graph import output_names, with_vocabularies
from .exporter.export import check_forward_signature, forward_name
from .exporter.shape_conditions import BranchOnTimesteps, ShapeConditions, branch_error
from .loops.families import NoLoop, export_rolled
from .one_request.comparison import Comparison, DiffersAtLength, Run, include_excluded_shapes, served_batches
from .one_request.single_request import KeepsState, SingleExport, example_timesteps, export_single
from .program import ChunkPrograms, LoweredModel
from .ragged.batched import export_ragged, has_time, reject_impossible_numbers
from .refused_calls import kept_state, random_call, reject_random_operators, reject_scripted


def lower(model: torch.nn.Module, config: ServingConfig) -> LoweredModel:
    """Lower `model` (in eval mode) to programs over padded tensors that equal it on each request alone.

    Raises `LoweringError`: names the line of the model and a way out.
    """
    model.eval()
    reject_scripted(model)
    check_forward_signature(model, config)
    reject_swapped_axes(model, config)
    try:
        traced = _lower_request(model, config)
    except LoweringError as error:
        explained = random_call(model, config)
        if explained is None and not isinstance(error, KeepsState):
            explained = kept_state(model, config, error)
        if explained is None and isinstance(error, Unexplained):
            explained = relative_lengths_error(model, config) or eager_failure(model, config)
        if explained is None:
            raise
        raise explained from error
    reject_random_operators(traced.exported)
    chunked, chunking_reason = _chunk(traced)
    # A program without a recurrence does not show the time dimension of the declared inputs.
    for program in (traced.exported, *(() if chunked is None else (chunked.chunk,))):
        names = program.graph_signature.user_inputs  # with lengths and carried values after the declared inputs
        named = zip(names, traced.inputs, strict=False)
        mark_time(program, {str(name): spec.shape.index("time") for name, spec in named if "time" in spec.shape})
    return LoweredModel(
        exported=traced.exported,
        inputs=traced.inputs,
        takes_lengths=has_time(traced.inputs),
        outputs=traced.outputs,
        constants=_constants(traced.exported),
        chunked=chunked,
        chunking_reason=chunking_reason,
        any_shape=_takes_any_shape(traced, config),
        shortest=traced.single.shortest,
        decided=traced.single.decided,
        bound=traced.single.bound,
    )


@dataclass(frozen=True)
class _Traced:
    """A program of the whole sequence, and facts found during tracing."""

    exported: torch.export.ExportedProgram
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    single: SingleExport
    """The trace of one request that the program was made of."""
    places: Sequence[int | None]
    """Dimensions of the outputs that are the batch, where they are known."""


def _chunk(traced: _Traced) -> tuple[ChunkPrograms | None, str]:
    """Build the chunk programs, or say why the model runs over whole sequences."""
    if traced.single.shortest > 1:
        return None, f"the model takes {traced.single.shortest} timesteps or more at once"
    try:
        chunked = _chunk_programs(traced)
        check_chunked_equivalence(traced.exported, chunked, traced.inputs, traced.outputs)
    except (NotChunkable, LoweringError) as error:
        return None, str(error)
    names = ", ".join(value.spec.name for value in chunked.carried)
    return chunked, f"each chunk of time passes {names} to the next"


def _chunk_programs(traced: _Traced) -> ChunkPrograms:
    """Build the chunk programs, with positions that continue those of the chunk before where the model uses them."""
    single, inputs = traced.single, traced.inputs
    try:
        return build_chunk_programs(traced.exported, inputs)
    except CountsTimesteps:
        counting, _ = export_ragged(single, inputs, traced.places, counts=True)
    return build_chunk_programs(counting, inputs)


def _takes_any_shape(traced: _Traced, config: ServingConfig) -> bool:
    """Whether the program has no bound of batch or time but the model's own, and holds for all that are served."""
    bounds = traced.exported.range_constraints.values()
    if any(bound.lower > traced.single.shortest or bound.upper != int_oo for bound in bounds):
        return False
    conditions = ShapeConditions(traced.exported, traced.inputs)
    lengths = range(traced.single.shortest, config.longest + 1)
    return all(conditions.holds(batch, time) for batch in served_batches(config) for time in lengths)


def _constants(exported: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Collect the tensors outside the state dict: constants of the code and non-persistent buffers."""
    outside = {name: value for name, value in exported.constants.items() if name not in exported.state_dict}
    return {name: value.detach().contiguous() for name, value in outside.items() if isinstance(value, torch.Tensor)}


_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34)


def _lower_request(model: torch.nn.Module, config: ServingConfig) -> _Traced:
    """Trace one request alone, and run its graph on ragged batches."""
    with explained_export_errors(f"{forward_name(model)}, traced for one request,"):
        shortest = shortest_length(model, config)
        single = _export(model, config, shortest)
        try:
            return _batched(model, config, single)
        except DiffersAtLength as error:
            longer = _first_included(single, error, config)
            if longer is None or (longer > config.grid.lengths[0] and not error.in_size):
                named: LoweringError = branch_error(forward_name(model), single.branches, error.length) or error
                if longer == last_form(single.lengths_to_compare, config.longest):
                    named = naming_fewest(named, longer, config.longest)
                raise named from error.__cause__
        return _batched(model, config, _export(model, config, longer))


def _first_included(single: SingleExport, error: DiffersAtLength, config: ServingConfig) -> int | None:
    """Return the fewest timesteps from those of the error on that the exporter includes, if it excludes these.

    A model with `y[:, -3:]` has an output of another size for a request of 2 timesteps; one that pads a short request
    before a reflection has other values. The exporter takes it for granted that no size is 1, which `squeeze()` drops.
    """
    outside = single.lengths_to_compare | {1} if error.in_size else single.lengths_to_compare
    if error.length not in outside:
        return None
    return next((n for n in range(error.length, config.longest + 1) if n not in outside), None)


def _export(model: torch.nn.Module, config: ServingConfig, shortest: int) -> SingleExport:
    """Trace one request; where that fails, trace it with its loops over timesteps recognised."""
    try:
        return _export_longer(model, config, shortest, example_timesteps(config, shortest))
    except LoweringError as error:
        refusal = error
    try:
        return export_rolled(model, config, shortest)
    except InputsDoNotFit as error:
        if not isinstance(refusal, PartialTrace):
            raise refusal from error
        raise Unexplained(str(error)) from error  # its line is that of the loop's own trace
    except UnknownLoop as error:
        if isinstance(refusal, BranchOnTimesteps) and refusal.on_remainder:
            raise refusal from error
        raise
    except LoweringError as error:
        if isinstance(refusal, PartialTrace) and not isinstance(error, NoLoop):
            raise
        raise refusal from error


def _export_longer(
    model: torch.nn.Module, config: ServingConfig, shortest: int, timesteps: int, traces: int = 4
) -> SingleExport:
    """Export forward() for one request of `shortest` timesteps, or of those from which it has one form.

    These must be within the shortest bucket. A size that is 1 in the trace, such as the only frame of few timesteps,
    is taken for a constant, so that a trace of more timesteps may hold for all. At most `traces` are made.

    Raises `PartialTrace`: there is no such number of timesteps.
    Raises `LoweringError`: the graph depends on data.
    """
    try:
        return export_single(model, config, shortest, timesteps)
    except PartialTrace as error:
        first = last_form(error.excluded, config.longest)
        is_periodic = isinstance(error, BranchOnTimesteps) and error.on_remainder
        is_unrolled = len(error.excluded) >= config.longest - shortest  # for one number of timesteps, as a loop is
        if traces == 1 or first == config.longest or is_periodic or is_unrolled:
            raise
        if config.longest in error.excluded:
            timesteps = example_timesteps(config, first)
        elif first <= config.grid.lengths[0]:
            shortest, timesteps = first, max(timesteps, example_timesteps(config, first))
        else:
            raise naming_fewest(error, first, config.longest) from error.__cause__
    return _export_longer(model, config, shortest, timesteps, traces - 1)


def last_form(excluded: Collection[int], longest: int) -> int:
    """Return the fewest timesteps from which all numbers up to `longest` are excluded, or none is.

    >>> last_form({1, 2, 3}, longest=8)
    4
    >>> last_form({6, 7, 8}, longest=8)
    6
    >>> last_form({2, 4, 6, 8}, longest=8)
    8
    """
    last = longest in excluded
    return next((n + 1 for n in range(longest - 1, 0, -1) if (n in excluded) != last), 1)


def naming_fewest(error: LoweringError, first: int, longest: int) -> LoweringError:
    """Add to the error the fewest timesteps that can be served, unless most requests are shorter."""
    if 2 * first <= longest:
        served = (
            f"Requests of {first} timesteps or more take the same branches: without buckets of fewer timesteps they "
            "are served, and shorter ones are answered by the model's own code if it takes them"
        )
        error.args = (f"{error}. {served}",)
    return error


def _batched(model: torch.nn.Module, config: ServingConfig, single: SingleExport) -> _Traced:
    """Run the graph of one request on ragged batches, and compare the program with the model."""
    inputs, shortest = config.input_specs, single.shortest
    reject_impossible_numbers(single.exported, range(shortest, config.longest + 1))
    places = batch_places(model, config)
    program, layouts = export_ragged(single, inputs, places)
    names = output_names(single.output_tree, layouts, config.outputs)
    outputs = tuple(TensorSpec(name, dtype, shape) for name, (dtype, shape) in zip(names, layouts, strict=True))
    inputs = with_vocabularies(program, inputs, single.vocabularies)
    comparison = Comparison(model, config, program, inputs, outputs)
    include_excluded_shapes(comparison, shortest)
    _check_buckets(program, config)
    longest = config.grid.lengths[-1]
    compared = {shortest - 1 + length for length in _LENGTHS} | {*config.grid.lengths}
    compared |= single.lengths_to_compare | single.compared
    lengths = sorted(length for length in compared if shortest <= length <= longest)
    run, time = program.module(), min(max(lengths) + 3, longest)
    comparison.check(run, lengths, time)
    comparison.check_values(run, lengths, time)
    outside = [length for length in sorted(single.lengths_to_compare) if shortest <= length <= longest]
    _compare_paddings(comparison, run, outside)
    return _Traced(program, inputs, outputs, single, places)


def _compare_paddings(comparison: Comparison, run: Run, lengths: Sequence[int]) -> None:
    """Compare requests of lengths for which the graph is not known to hold with each padding that they may get."""
    conditions = ShapeConditions(comparison.exported, comparison.inputs)
    buckets = comparison.config.grid.lengths
    for time in buckets:
        if fitting := [length for length in lengths if length <= time]:
            comparison.check(run, fitting, time)
    for length in lengths:
        for time in (length, length + 1):
            if time <= buckets[-1] and conditions.holds(1, time):
                comparison.check(run, [length], time)


def _check_buckets(program: torch.export.ExportedProgram, config: ServingConfig) -> None:
    """Refuse buckets that the exporter's conditions exclude."""
    conditions = ShapeConditions(program, config.input_specs)
    grid = config.grid
    refused = sorted({t for b in grid.batches for t in grid.lengths if not conditions.holds(b, t)})
    if refused:
        possible = [t for t in grid.lengths if t not in refused]
        lengths = ", ".join(map(str, refused))
        raise LoweringError(
            f"the model cannot be run in buckets of {lengths} timesteps: leave them out of buckets.length"
            + (f", and keep {', '.join(map(str, possible))}, in which shorter requests are served too" * bool(possible))
        )
