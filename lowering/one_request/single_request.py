"""Trace of forward() for one request alone: batch size 1, no padding, a symbolic number of timesteps.

Alone, a request's lengths are known: all of its timesteps. So what a model does with lengths in Python (`tolist()`,
`max()`, sorting, a loop that builds a mask) is followed exactly, packing is the identity, and nothing mixes rows.

Operators for which there are no rules become several. Buffers that a model overwrites before it reads them are a place
for intermediate results, no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from sympy import isprime
from torch._decomp import decomposition_table
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...backends.exported_program import quiet
from ...config.forward import MaskConfig
from ...config.schema import ServingConfig
from ..errors import LoweringError, at_line, explained_export_errors, reject_non_tensors
from ..exporter.arguments import in_layout, plain_outputs
from ..exporter.export import (
    bind_arguments,
    drop_unused,
    example_tensor,
    export_quietly,
    forward_name,
    replaced_forward,
    with_parameter_names,
)
from ..exporter.model_attributes import register_tensors
from ..exporter.shape_conditions import ShapeConditions, TimeBound, find_time_bound
from ..exporter.timestep_branches import Branch, noted_branches
from ..loops.steps import STEPS
from ..outputs import vocabularies
from ..ragged.rules import rule_of
from .caught_errors import Caught, noted_errors, reject_caught_errors
from .excluded_lengths import lengths_outside, noted_conversions
from .known_numbers import with_known_values
from .replaced_functions import replaced_functions
from .single_mode import SingleRequestMode
from .single_packing import reject_packed_results
from .uniform_values import as_number, with_uniform_value
from .value_ranges import with_range
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
    timesteps: int
    """Number of timesteps that was traced."""
    shortest: int
    """Fewest timesteps for which the graph holds."""
    decided: frozenset[str] = frozenset()
    """Inputs whose declared range decided a branch: the graph holds for values in it only."""
    branches: tuple[Branch, ...] = ()
    """Branches on the number of timesteps that forward() has taken."""
    bound: TimeBound | None = None
    """Numbers of timesteps beyond the buckets for which the graph does not hold; None: it holds for all."""
    vocabularies: Mapping[str, int] = field(default_factory=dict)
    """Numbers of ids of the inputs that a `one_hot` takes, which decomposing replaces."""


def export_single(
    model: torch.nn.Module, config: ServingConfig, shortest: int = 1, timesteps: int | None = None
) -> SingleExport:
    """Export forward() for one request of any number of timesteps, `shortest` or more.

    `timesteps` are those to trace with.

    Raises `PartialTrace`: the graph holds for some numbers of timesteps only.
    Raises `LoweringError`: the graph depends on data.
    """
    decided: set[str] = set()
    branches: list[Branch] = []
    forward = _request_forward(model, config, decided)
    with noted_branches(branches):
        single = export_request(model, forward, config, forward_name(model), shortest, branches, timesteps)
    return replace(single, decided=frozenset(decided), branches=tuple(branches))


def export_request(
    model: torch.nn.Module,
    forward: RequestForward,
    config: ServingConfig,
    name: str,
    shortest: int,
    branches: Sequence[Branch] = (),
    timesteps: int | None = None,
) -> SingleExport:
    """Export `forward` for one request of any number of timesteps; its tensors are those of `model`.

    `branches` are those that forward() has taken, once it is traced. `timesteps` are those to trace with.

    Raises `PartialTrace`: the graph holds for some numbers of timesteps only.
    Raises `LoweringError`: the graph depends on data.
    """
    timesteps = example_timesteps(config, shortest) if timesteps is None else timesteps
    dims = [
        {dim: torch.export.Dim.AUTO for dim, size in enumerate(s.shape) if size == "time"} for s in config.input_specs
    ]
    fixing: list[str] = []
    with noted_conversions(fixing):
        exported, tree = _trace(model, forward, config, timesteps, dims, name)
    shapes = {spec.name.replace(".", "_"): _alone(spec.shape) for spec in config.input_specs}
    outside = lengths_outside(exported, name, shapes, range(shortest, config.longest + 1), branches, fixing)
    bound = find_time_bound(ShapeConditions(exported, shapes), branches, rows=1, longest=config.longest)
    _reject_distances_of_timesteps(exported)
    with quiet():
        functional = _decomposed(exported, STEPS)
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
    forward = _request_forward(model, config, decided)
    exported, tree = _trace(model, forward, config, timesteps, None, forward_name(model))
    with quiet():
        functional = exported.run_decompositions({})
    _drop_overwritten_buffers(functional)
    return SingleExport(
        functional, tree, frozenset(), timesteps, timesteps, frozenset(decided), vocabularies=vocabularies(exported)
    )


def _request_forward(model: torch.nn.Module, config: ServingConfig, decided: set[str]) -> RequestForward:
    """Wrap the model's forward() to be called with the tensors of one request and its number of timesteps.

    `decided` gets the names of inputs whose range decides a branch.
    """
    own_forward = model.forward

    def forward(timesteps: Any, inputs: Sequence[torch.Tensor]) -> Any:
        mode = SingleRequestMode()
        with replaced_functions(model, mode), mode:
            lengths = with_known_values(torch.full((1,), timesteps, dtype=torch.int64), [timesteps])
            ranged = [
                with_range(tensor, spec.value_range, partial(decided.add, spec.name))
                for tensor, spec in zip(inputs, config.input_specs, strict=True)
            ]
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
    model: torch.nn.Module,
    forward: RequestForward,
    config: ServingConfig,
    timesteps: int,
    dims: Sequence[Any] | None,
    name: str,
) -> tuple[torch.export.ExportedProgram, pytree.TreeSpec]:
    """Export `forward` for one request; the program, and the structure of what it returns."""
    notes: dict[str, Any] = {}
    errors: list[Caught] = []
    specs = config.input_specs

    def flat(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        time = next((t.shape[s.time_dim] for s, t in zip(specs, inputs, strict=True) if s.time_dim is not None), 1)
        with noted_errors(model, errors):
            leaves, notes["output_tree"] = pytree.tree_flatten(forward(time, inputs))
        reject_non_tensors("forward()", leaves, allow_none=True)
        return tuple(leaf for leaf in leaves if leaf is not None)

    traced = with_parameter_names(flat, [spec.name.replace(".", "_") for spec in specs])
    tensors = [example_tensor(spec, 1, timesteps) for spec in specs]
    with replaced_forward(model, traced), explained_export_errors(name, dynamic_shapes=dims is not None):
        register_tensors(model)
        program = export_quietly(model, tensors, dims)
    reject_caught_errors(name, model, config, timesteps, errors)
    return program, notes["output_tree"]


def example_timesteps(config: ServingConfig, shortest: int = 1) -> int:
    """Return the number of timesteps to trace with: `shortest` or more, and one that few strides divide.

    One that a stride divides would be taken for the rule: code that pads to a multiple adds nothing to it. A size of
    1 would be taken for a constant.
    """
    longest = config.grid.lengths[-1]
    most = max(2, min(max(_MOST_TIMESTEPS, 2 * shortest), longest))
    numbers = range(most, max(shortest, 2) - 1, -1)
    return next((n for n in numbers if isprime(n) or (n % 2 == 0 and isprime(n // 2))), most)


def _alone(shape: Sequence[int | str]) -> list[int | str]:
    return [1 if size == "batch" else size for size in shape]


def _cosine_similarity(a: torch.Tensor, b: torch.Tensor, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    rank = max(a.dim(), b.dim())
    a, b = (x.reshape(*[1] * (rank - x.dim()), *x.shape) for x in (a, b))
    products = [(x * y).sum(dim) for x, y in ((a, b), (a, a), (b, b))]
    norms = [product.sqrt().clamp(min=eps) for product in products[1:]]
    return products[0] / (norms[0] * norms[1])


_MOST_SUBTRACTED = 25
"""Rows of `torch.cdist` for which eager mode subtracts; it multiplies matrices for more, which rounds otherwise."""


def _distances(a: torch.Tensor, b: torch.Tensor, p: float = 2, compute_mode: int | None = None) -> torch.Tensor:
    if p == 2 and (compute_mode == 1 or (compute_mode != 2 and _fixed_rows(a, b) > _MOST_SUBTRACTED)):
        product: torch.Tensor = torch.ops.aten._euclidean_dist(a, b)
        return product
    difference: torch.Tensor = torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)
    return difference


def _fixed_rows(*tensors: torch.Tensor) -> int:
    rows: list[Any] = [tensor.shape[-2] for tensor in tensors]
    return max((count for count in rows if isinstance(count, int)), default=0)


def _reject_distances_of_timesteps(program: torch.export.ExportedProgram) -> None:
    """Refuse distances that eager mode computes in two ways. Raises `LoweringError`: names the line."""
    for node in program.graph.nodes:
        if node.target is not torch.ops.aten.cdist.default:
            continue
        arguments: Any = (*node.args, *(2, None)[len(node.args) - 2 :])
        a, b, p, mode = arguments
        tensors = a.meta["val"], b.meta["val"]
        is_mixed = p == 2 and mode in (None, 0) and _fixed_rows(*tensors) <= _MOST_SUBTRACTED
        if is_mixed and any(isinstance(tensor.shape[-2], torch.SymInt) for tensor in tensors):
            raise LoweringError(
                f"torch.cdist multiplies matrices for more than {_MOST_SUBTRACTED} rows, which rounds otherwise than "
                f"for fewer{at_line(node)}: pass compute_mode='donot_use_mm_for_euclid_dist'"
            )


_DECOMPOSED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.cosine_similarity.default: _cosine_similarity,
    torch.ops.aten.cdist.default: _distances,
}
"""Operators that are decomposed in a way of this package."""
_WITHIN_LOSSES = (torch.ops.aten.nll_loss_nd.default, torch.ops.aten.nll_loss.default)
"""Operators within cross entropy. Torch's table decomposes the second one to a sum, whichever reduction it has.

That also gives its shape where it is decomposed later, so the exporter's decompositions must be there from the start.
"""
_AFTER_WRITES = (torch.ops.aten.zero.default,)
"""Functional forms of operators that write in place: they are decomposed in the pass that makes them."""
_MOST_PASSES = 4


def _decomposed(exported: torch.export.ExportedProgram, own: Mapping[Any, Callable[..., Any]]) -> Any:
    """Return a functional program in which operators without a rule are those that torch composes them of.

    Losses are examples: `F.l1_loss`, `F.cross_entropy`. `own` are decompositions to be used in any case.
    """
    composed = _exporters_decompositions()
    inner = {target: composed[target] for target in (*_WITHIN_LOSSES, *_AFTER_WRITES)}
    table = {**own, **_DECOMPOSED, **inner, **decompositions_of(exported.graph_module)}
    if all(_stays(node, table) for node in exported.graph.nodes):
        return exported
    program = exported.run_decompositions(table)
    for _ in range(_MOST_PASSES):
        more = {
            target: function
            for target, function in decompositions_of(program.graph_module).items()
            if target not in table
        }
        if not more:
            break
        table |= more
        program = program.run_decompositions(table)
    return program


def _stays(node: torch.fx.Node, table: Mapping[Any, Any]) -> bool:
    """Whether decomposing changes nothing in a node: it has no part in the table, and writes nothing in place."""
    target = node.target
    if node.op != "call_function" or getattr(target, "__module__", "") == "_operator":
        return node.op != "get_attr"  # the graph of a loop, or of a context
    return isinstance(target, torch._ops.OpOverload) and target not in table and not target._schema.is_mutable


def decompositions_of(module: torch.fx.GraphModule) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of the operators of a graph and of its loops that have no rule.

    Those of the exporter are the operators' own, and come first.
    """
    graphs = [part.graph for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = {node.target for graph in graphs for node in graph.nodes if _returns_tensors(node)}
    found: dict[Any, Callable[..., Any]] = {}
    composed = _exporters_decompositions()
    for target in targets:
        if target.namespace != "aten" or rule_of(target) is not None or target in _DECOMPOSED:
            continue
        if target in composed:
            found[target] = composed[target]
        elif target in decomposition_table:
            found[target] = decomposition_table[target]
        elif target._can_decompose() and not target._schema.is_mutable:  # torch's own code in other operators
            found[target] = target.decompose
    return found


@cache
def _exporters_decompositions() -> Mapping[Any, Callable[..., Any]]:
    return torch.export.default_decompositions()


def _returns_tensors(node: torch.fx.Node) -> bool:
    """Whether a node calls an operator of tensors, not of sizes."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return isinstance(node.target, torch._ops.OpOverload) and any(isinstance(v, torch.Tensor) for v in values)


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
    """Remove the writes to buffers, parameters and inputs from the outputs of a functional graph.

    Raises `KeepsState`: the graph reads one that it writes, so that requests would depend on earlier ones.
    """
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    if not written and not signature.user_inputs_to_mutate:
        return
    kept = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    holders = {name for name, target in kept.items() if target in written}
    graph = program.graph
    for node in [node for node in graph.nodes if node.op == "placeholder" and node.name in holders]:
        for user in [user for user in node.users if user.target in _FILLS]:
            _create(user)
    output = graph.output_node()
    kinds = [spec.kind for spec in signature.output_specs]
    results: Any = output.args[0]
    output.args = (tuple(r for r, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT),)
    signature.output_specs[:] = [spec for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.op == "placeholder" and node.name in holders and node.users:
            at = at_line(next(iter(node.users)))
            name = kept[node.name]
            raise KeepsState(
                f"the model reads {name}, which an earlier call wrote{at}: a request would depend on the one before. "
                "Take it as an input and return it as an output, or set it in forward() before it is read"
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
