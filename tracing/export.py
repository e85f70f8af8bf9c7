"""A function or a module as a program of fixed shapes, PackedSequence code replaced on the way."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..lowering.errors import LoweringError, node_line, raising_line, source_suffix
from ..lowering.export import replaced_forward
from ..lowering.lower import reject_random_operators
from ..lowering.packed_sequence import packed_sequence_mode, reject_packed_outputs

Function = Callable[..., Any]
"""An `nn.Module` or any other callable over tensors."""


@dataclass(frozen=True)
class ExportedFunction:
    """A program over flat tensors, and how a call's arguments and answers are made of them."""

    program: torch.export.ExportedProgram
    """The example's tensors in order, then the held ones, to a flat tuple of tensors."""
    in_tree: pytree.TreeSpec
    """Positional arguments of a call, as a tuple."""
    out_tree: pytree.TreeSpec


def flatten_example(example_inputs: Any) -> tuple[list[torch.Tensor], pytree.TreeSpec]:
    """The tensors of an example (a tensor, or a tuple of them that may be nested), and how they are put together.

    Raises:
        TypeError: something in it is no tensor on the CPU.
    """
    given = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    leaves, spec = pytree.tree_flatten(given)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
            what = f"a tensor on {leaf.device}" if isinstance(leaf, torch.Tensor) else f"{type(leaf).__name__}"
            raise TypeError(f"example_inputs must be tensors on the CPU, or tuples of them, but there is {what}")
    return [leaf.detach() for leaf in leaves], spec


def export_function(func: Function, example_inputs: Any, held: Sequence[str] = ()) -> ExportedFunction:
    """Export at exactly the example's shapes; control flow is that of the example.

    A module is exported in eval mode, and left in the mode it was in. `held` names buffers or parameters of the module
    that become inputs behind those of the example.

    Raises:
        LoweringError: the function cannot be a program: it uses packed data in another way than a recurrence does,
            depends on values, changes its inputs, or answers with something else than tensors.
        TypeError: the example holds something else than tensors on the CPU.
    """
    leaves, in_tree = flatten_example(example_inputs)
    module = func if isinstance(func, torch.nn.Module) else _Function(func)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [*(leaf.clone() for leaf in leaves), *(own[name].detach().clone() for name in held)]
    notes: dict[str, pytree.TreeSpec] = {}
    forward = _flat_forward(func, module, in_tree, held, notes)
    with eval_mode(module), replaced_forward(module, forward), _explained(func), torch.no_grad():
        program = _export(module, tensors)
    _refuse_varying_sizes(program)
    reject_random_operators(program)
    _refuse_mutation(program)
    return ExportedFunction(program, in_tree, notes["out_tree"])


class _Function(torch.nn.Module):
    """A plain function as a module without parameters."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = [function]  # in a list: a module in it would be registered

    def forward(self, *arguments: Any) -> Any:
        return self._function[0](*arguments)


@contextmanager
def eval_mode(func: Function) -> Iterator[None]:
    """A module without dropout and with the statistics of training; every submodule goes back to its own mode."""
    modes = {child: child.training for child in func.modules()} if isinstance(func, torch.nn.Module) else {}
    for child in modes:
        child.training = False
    try:
        yield
    finally:
        for child, training in modes.items():
            child.training = training


def _flat_forward(
    called: Function,
    module: torch.nn.Module,
    in_tree: pytree.TreeSpec,
    held: Sequence[str],
    notes: dict[str, pytree.TreeSpec],
) -> Function:
    """forward() over flat tensors to flat tensors; how the answers are put together goes to `notes`."""
    own, count = module.forward, in_tree.num_leaves

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments = pytree.tree_unflatten(list(tensors[:count]), in_tree)
        others = dict(zip(held, tensors[count:], strict=True))
        with _in_place_of(module, others), packed_sequence_mode(_rows(tensors[:count]), None, None):
            answers = own(*arguments)
            reject_packed_outputs(answers)
        leaves, notes["out_tree"] = pytree.tree_flatten(answers)
        _refuse_other_leaves(leaves)
        return tuple(leaves)

    names = _names(own if called is module else called, in_tree, count, held)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    return forward


def _rows(tensors: Sequence[torch.Tensor]) -> int | None:
    """How many lengths there are, if any input can hold them: `lengths.tolist()` must stay in the program."""
    return next((len(one) for one in tensors if one.dim() == 1 and not one.is_floating_point()), None)


def _names(forward: Function, in_tree: pytree.TreeSpec, count: int, held: Sequence[str]) -> list[str]:
    """What messages call each input: the parameter's name, with a number for each tensor of a tuple."""
    try:
        bound = inspect.signature(forward).bind(*pytree.tree_unflatten([None] * count, in_tree)).arguments
    except (TypeError, ValueError):
        bound = {}
    names = []
    for name, value in bound.items():
        size = pytree.tree_structure(value).num_leaves
        names += [name] if not isinstance(value, (tuple, list, dict)) else [f"{name}_{i}" for i in range(size)]
    if len(names) != count:
        names = [f"input_{i}" for i in range(count)]
    names += [name.replace(".", "_") for name in held]
    return names if len(set(names)) == len(names) else [f"input_{i}" for i in range(len(names))]


@contextmanager
def _in_place_of(module: torch.nn.Module, held: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Other tensors in the place of some buffers or parameters."""
    with ExitStack() as stack:
        for path, tensor in held.items():
            parent, _, name = path.rpartition(".")
            owner = module.get_submodule(parent)
            table: dict[str, Any] = owner._buffers if name in owner._buffers else owner._parameters
            stack.callback(table.__setitem__, name, table[name])
            table[name] = tensor
        yield


def _refuse_other_leaves(leaves: Sequence[object]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise LoweringError(f"the function returns a {type(leaf).__name__} ({leaf!r}); answers must be tensors")
    if not leaves:
        raise LoweringError("the function returns no tensor")


def _export(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about its internals
        program = torch.export.export(module, tuple(tensors), strict=False)
    program.graph.eliminate_dead_code()  # stand-ins for packed data
    program.graph_module.recompile()
    return program


def _refuse_varying_sizes(program: torch.export.ExportedProgram) -> None:
    for node in program.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and not all(isinstance(size, int) for size in value.shape):
                raise LoweringError(
                    f"the shape of what {node.target} gives{source_suffix(node_line(node))} depends on the values of "
                    "the inputs, which a program of fixed shapes cannot follow"
                )


def _refuse_mutation(program: torch.export.ExportedProgram) -> None:
    """A traced function is one of its inputs alone: what it would change it cannot reach."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signature = program.run_decompositions({}).graph_signature
    changed = [*signature.user_inputs_to_mutate.values(), *signature.buffers_to_mutate.values()]
    if changed:
        raise LoweringError(
            f"the function changes {', '.join(map(repr, changed))} in place: return the new value instead, and name it "
            "in input_output_aliases where the next call is to go on from it"
        )


@contextmanager
def _explained(func: Function) -> Iterator[None]:
    """Turn what the exporter raises into the user's words and the user's line."""
    try:
        yield
    except LoweringError:
        raise
    except Exception as error:
        causes = list(_causes(error))
        for cause in causes:
            if isinstance(cause, LoweringError):
                raise cause from None
        name = getattr(func, "__name__", type(func).__name__)
        line = next((found for cause in causes if (found := raising_line(cause))), None)
        text = str(error).strip()
        first = text.splitlines()[0] if text else type(error).__name__
        kinds = {type(cause).__name__ for cause in causes}
        if "data-dependent" in text or kinds & {"DataDependentOutputException", "DynamicOutputShapeException"}:
            raise LoweringError(
                f"the shapes or the control flow of {name} depend on the values of its inputs, which a program of "
                f"fixed shapes cannot follow: {first}{source_suffix(line)}"
            ) from error
        raise LoweringError(
            f"{name} could not be traced: {type(error).__name__}: {first}{source_suffix(line)}"
        ) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
