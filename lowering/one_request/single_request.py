"""Trace of forward() for one request alone: batch size 1, no padding, a symbolic number of timesteps.

Alone, a request's lengths are known: all of its timesteps. So what a model does with lengths in Python (`tolist()`,
`max()`, sorting, a loop that builds a mask) is followed exactly, packing is the identity, and nothing mixes rows.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from sympy import isprime
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...backends.exported_program import quiet
from ...config.forward import MaskConfig
from ...config.schema import ServingConfig
from ..eager_call import copy_of, failure_of
from ..errors import (
    LoweringError,
    at_line,
    explain_export_error,
    explained_export_errors,
    format_source_line,
    is_user_file,
    reject_non_tensors,
    source_suffix,
)
from ..exported_graph import vocabularies
from ..exporter.arguments import in_layout, plain_outputs
from ..exporter.export import (
    bind_arguments,
    drop_unused,
    dynamic_shape,
    example_tensor,
    export_quietly,
    forward_name,
    replaced_forward,
    with_parameter_names,
)
from ..exporter.model_attributes import register_tensors, user_file, user_modules
from ..exporter.shape_conditions import (
    Branch,
    ShapeConditions,
    TimeBound,
    find_time_bound,
    lengths_outside,
    noted_branches,
    noted_conversions,
)
from ..loops.steps import STEPS
from .decompositions import decomposed, reject_distances_of_timesteps
from .element_facts import as_number, with_range, with_uniform_value
from .known_numbers import with_known_values
from .replaced_functions import replaced_functions
from .single_mode import SingleRequestMode
from .single_packing import reject_packed_results
from .written_views import read_what_was_written

_MOST_TIMESTEPS = 23
"""Timesteps to trace with at most, unless the model needs more: enough for the strides of a model."""


RequestForward = Callable[[Any, Sequence[torch.Tensor]], Any]
"""A function of the number of timesteps and of the inputs of one request."""


@dataclass(frozen=True)
class SingleExport:
    """The functional graph of one request, with what the model returns."""

    exported: torch.export.ExportedProgram
    output_tree: pytree.TreeSpec
    lengths_to_compare: frozenset[int]
    """Numbers of timesteps for which the exporter did not say that the graph holds."""
    compared: frozenset[int] = field(default_factory=frozenset, kw_only=True)
    """Further numbers of timesteps to compare."""
    timesteps: int  # of the trace
    shortest: int  # for which the graph holds
    decided: frozenset[str] = frozenset()
    """Inputs whose declared range decided a branch: the graph holds for values in it only."""
    branches: tuple[Branch, ...] = ()
    """Branches on the number of timesteps that forward() has taken."""
    bound: TimeBound | None = None
    """Numbers of timesteps beyond the buckets for which the graph does not hold; None: it holds for all."""
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    """Numbers of ids of the inputs that a `one_hot` takes, which decomposing replaces."""


def export_single(model: torch.nn.Module, config: ServingConfig, shortest: int, timesteps: int) -> SingleExport:
    """Export forward() for one request of any number of timesteps, `shortest` or more.

    `timesteps` are those to trace with.

    Raises `PartialTrace`: the graph holds for some numbers of timesteps only.
    Raises `LoweringError`: the graph depends on data.
    """
    decided: set[str] = set()
    branches: list[Branch] = []
    forward = request_forward(model, config, decided)
    with noted_branches(branches):
        single = export_request(model, forward, config, forward_name(model), shortest, timesteps, branches)
    return replace(single, decided=frozenset(decided), branches=tuple(branches))


def export_request(
    model: torch.nn.Module,
    forward: RequestForward,
    config: ServingConfig,
    name: str,
    shortest: int,
    timesteps: int,
    branches: Sequence[Branch] = (),
) -> SingleExport:
    """Export `forward` for one request of any number of timesteps; its tensors are those of `model`.

    `branches` are those that forward() has taken, once it is traced. `timesteps` are those to trace with.

    Raises `PartialTrace`: the graph holds for some numbers of timesteps only.
    Raises `LoweringError`: the graph depends on data.
    """
    fixing: list[str] = []
    with noted_conversions(fixing):
        exported, tree = _trace(model, forward, config, timesteps, name, dynamic=True)
    conditions = ShapeConditions(exported, config.input_specs)
    outside = lengths_outside(conditions, name, range(shortest, config.longest + 1), branches, fixing)
    bound = find_time_bound(conditions, branches, config.longest)
    reject_distances_of_timesteps(exported)
    with quiet():
        functional = decomposed(exported, STEPS)
    _drop_overwritten_buffers(functional)
    read_what_was_written(functional)
    drop_unused(functional)
    return SingleExport(
        functional, tree, frozenset(outside), timesteps, shortest, vocabularies=vocabularies(exported), bound=bound
    )


def export_unrolled(model: torch.nn.Module, config: ServingConfig, timesteps: int) -> SingleExport:
    """Export forward() for one request of one number of timesteps, with its loops over them unrolled.

    Raises `LoweringError`: the graph depends on data.
    """
    decided: set[str] = set()
    forward = request_forward(model, config, decided)
    exported, tree = _trace(model, forward, config, timesteps, forward_name(model), dynamic=False)
    with quiet():
        functional = exported.run_decompositions({})
    _drop_overwritten_buffers(functional)
    return SingleExport(
        functional, tree, frozenset(), timesteps, timesteps, frozenset(decided), vocabularies=vocabularies(exported)
    )


def request_forward(model: torch.nn.Module, config: ServingConfig, decided: set[str]) -> RequestForward:
    """Wrap forward() for one request; `decided` gets the names of inputs whose range decides a branch."""
    own_forward = model.forward

    def forward(timesteps: Any, inputs: Sequence[torch.Tensor]) -> Any:
        with replaced_functions(model), SingleRequestMode():
            lengths = with_known_values(torch.full((1,), timesteps, dtype=torch.int64), [timesteps])
            pairs = zip(inputs, config.input_specs, strict=True)
            ranged = [with_range(tensor, spec.value_range, partial(decided.add, spec.name)) for tensor, spec in pairs]
            own = plain_outputs(own_forward(**bind_arguments(config, ranged, lengths, _mask_alone)))
            reject_packed_results(own)
        return own

    return forward


def _mask_alone(mask: MaskConfig, lengths: torch.Tensor, time: Any) -> torch.Tensor:
    """Return the mask of one request, which marks all of its timesteps."""
    real = mask.true_for == "timesteps"
    made = in_layout(mask, torch.full((1, time), real))
    return with_uniform_value(made, as_number(real, made.dtype))


def _trace(
    model: torch.nn.Module, forward: RequestForward, config: ServingConfig, timesteps: int, name: str, *, dynamic: bool
) -> tuple[torch.export.ExportedProgram, pytree.TreeSpec]:
    """Export `forward` for one request; the program, and the structure of what it returns.

    If `dynamic`, the program is for any number of timesteps.
    """
    notes: dict[str, Any] = {}
    errors: list[_Caught] = []
    specs = config.input_specs

    def flat(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        time = next((t.shape[s.time_dim] for s, t in zip(specs, inputs, strict=True) if s.time_dim is not None), 1)
        with _noted_errors(model, errors):
            leaves, notes["output_tree"] = pytree.tree_flatten(forward(time, inputs))
        reject_non_tensors("forward()", leaves, allow_none=True)
        return tuple(leaf for leaf in leaves if leaf is not None)

    traced = with_parameter_names(flat, [spec.name.replace(".", "_") for spec in specs])
    tensors = [example_tensor(spec, 1, timesteps) for spec in specs]
    dims = [dynamic_shape(spec, {"time": torch.export.Dim.AUTO}) for spec in specs] if dynamic else None
    with replaced_forward(model, traced), explained_export_errors(name, dynamic_shapes=dynamic):
        register_tensors(model)
        program = export_quietly(model, tensors, dims)
    _reject_caught_errors(name, model, config, timesteps, errors)
    return program, notes["output_tree"]


_Caught = tuple[str, int, Exception]
"""A file and line of the model, and an error that was raised there."""


@contextlib.contextmanager
def _noted_errors(model: torch.nn.Module, errors: list[_Caught]) -> Iterator[None]:
    """Append the errors in the model's own code, if it has a handler of any."""

    def noted(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call" and not is_user_file(frame.f_code.co_filename):
            return None
        frame.f_trace_lines = False
        if event == "exception" and isinstance(argument[1], Exception) and not isinstance(argument[1], StopIteration):
            errors.append((frame.f_code.co_filename, frame.f_lineno, argument[1]))
        return noted

    before = sys.gettrace()
    if any(_has_handler(user_file(module)) for module in user_modules(model)):
        sys.settrace(noted)
    try:
        yield
    finally:
        sys.settrace(before)


@cache
def _has_handler(file: Path | None) -> bool:
    text = "" if file is None else file.read_text(encoding="utf-8", errors="replace")
    return "except" in text or "suppress" in text


def _reject_caught_errors(
    name: str, model: torch.nn.Module, config: ServingConfig, timesteps: int, errors: Sequence[_Caught]
) -> None:
    """Refuse the trace of a model that has caught an error of the trace itself, which it does not have in eager mode.

    Raises `LoweringError`: the error, with the line.
    """
    if not errors:
        return
    in_eager_mode: list[_Caught] = []
    with _noted_errors(model, in_eager_mode):
        failure_of(copy_of(model), config, timesteps, torch.tensor([timesteps]))
    expected = {(file, line, type(error)) for file, line, error in in_eager_mode}
    for file, line, error in errors:
        if (file, line, type(error)) not in expected:
            at = source_suffix(format_source_line(file, line))
            raise LoweringError(
                explain_export_error(name, error, dynamic_shapes=False)
                or f"{name} catches an error of its trace that it does not have in eager mode{at}: "
                f"{type(error).__name__}: {error}. Leave out what fails, or the `except`"
            ) from error


def example_timesteps(config: ServingConfig, shortest: int = 1) -> int:
    """Return the number of timesteps to trace with: `shortest` or more, and one that few strides divide.

    One that a stride divides would be taken for the rule: code that pads to a multiple adds nothing to it. A size of
    1 would be taken for a constant.
    """
    most = max(2, min(max(_MOST_TIMESTEPS, 2 * shortest), config.grid.lengths[-1]))
    numbers = range(most, max(shortest, 2) - 1, -1)
    return next((n for n in numbers if isprime(n) or (n % 2 == 0 and isprime(n // 2))), most)


_aten = torch.ops.aten
_FILLS = {
    _aten.zero.default: 0,
    _aten.zeros_like.default: 0,
    _aten.ones_like.default: 1,
    _aten.fill.Scalar: None,
    _aten.full_like.default: None,
}
"""Operators that read the size of a tensor only, with the number that they write."""


class KeepsState(LoweringError):
    """A model whose outputs depend on earlier requests."""


def _drop_overwritten_buffers(program: torch.export.ExportedProgram) -> None:
    """Remove the writes to buffers, parameters and inputs from the outputs of a functional graph."""
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    if not written and not signature.user_inputs_to_mutate:
        return
    kept = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    holders = {name for name, target in kept.items() if target in written}
    graph = program.graph
    held = [node for node in graph.find_nodes(op="placeholder") if node.name in holders]
    for node in held:
        for user in [user for user in node.users if user.target in _FILLS]:
            _create(user)
    output = graph.output_node()
    kinds = [spec.kind for spec in signature.output_specs]
    results: Any = output.args[0]
    output.args = (tuple(r for r, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT),)
    signature.output_specs[:] = [spec for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    graph.eliminate_dead_code()
    for node in held:
        if node.users:
            at = at_line(next(iter(node.users)))
            raise KeepsState(
                f"the model reads {kept[node.name]}, which an earlier call wrote{at}: a request would depend on the "
                "one before. Take it as an input and return it as an output, or set it in forward() before it is read"
            )
    program.graph_module.recompile()


def _create(node: Node) -> None:
    """Replace a tensor made like a buffer by one made of numbers."""
    made = node.meta["val"]
    known = _FILLS[node.target]  # type: ignore[index]  # an operator
    number: Any = node.args[1] if known is None else known
    with node.graph.inserting_before(node):
        new = node.graph.call_function(_aten.full.default, (list(made.shape), number), {"dtype": made.dtype})
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
