"""Export of a function or a module at fixed shapes; PackedSequence code is replaced during tracing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..backends.exported_program import quiet
from ..lowering.errors import LoweringError, explained_export_errors, node_line, reject_non_tensors, source_suffix
from ..lowering.exporter.export import export_quietly, replaced_forward, with_parameter_names
from ..lowering.packing.packed_placeholder import reject_packed_outputs
from ..lowering.refused_calls import reject_random_operators
from .longest_length import LongestLength, required_longest
from .packed_mode import packed_sequence_mode

Function = Callable[..., Any]
"""An `nn.Module` or any other callable over tensors."""


@dataclass(frozen=True)
class ExportedFunction:
    """A program over flat tensors, with the structures of a call's arguments and outputs."""

    program: torch.export.ExportedProgram
    """Inputs: the tensors of the example, then the held ones; outputs: a flat tuple of tensors."""
    in_tree: pytree.TreeSpec
    """Structure of the positional arguments of a call, as a tuple."""
    out_tree: pytree.TreeSpec
    """Structure of the outputs."""
    longest: LongestLength | None = None
    """Length that a call's longest sequence must have; None: any."""
    aliases: Sequence[tuple[int, int]] = ()
    """Indices of each state among the inputs, and of its next value among the outputs."""
    initial: tuple[torch.Tensor, ...] = ()
    """Initial value of each state."""


def flatten_example(example_inputs: Any) -> tuple[list[torch.Tensor], pytree.TreeSpec]:
    """Flatten an example, a tensor or a nested tuple of tensors; return the tensors and their structure.

    Raises `TypeError`: the example contains anything but tensors on the CPU.
    """
    arguments = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    leaves, spec = pytree.tree_flatten(arguments)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cpu":
            what = f"a tensor on {leaf.device}" if isinstance(leaf, torch.Tensor) else f"{type(leaf).__name__}"
            raise TypeError(f"example_inputs must be tensors on the CPU, or tuples of them, not {what}")
    return [leaf.detach() for leaf in leaves], spec


def export_function(func: Function, example_inputs: Any, held: Sequence[str] = ()) -> ExportedFunction:
    """Export at exactly the example's shapes; control flow is that of the example.

    A module is exported in eval mode and left in its former mode. `held` names buffers or parameters of the module that
    become inputs after those of the example.

    Raises `LoweringError`: the function cannot become a program: it uses packed data outside a recurrence, depends on
    values, changes its inputs, or returns anything but tensors.
    Raises `TypeError`: the example contains anything but tensors on the CPU.
    """
    leaves, in_tree = flatten_example(example_inputs)
    module = func if isinstance(func, torch.nn.Module) else _Function(func)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [*(leaf.clone() for leaf in leaves), *(own[name].detach().clone() for name in held)]
    notes: dict[str, Any] = {}
    forward = _flat_forward(func, module, in_tree, held, notes)
    name = getattr(func, "__name__", type(func).__name__)
    with eval_mode(module):
        with replaced_forward(module, forward), explained_export_errors(name):
            program = export_quietly(module, tensors)
            program.graph.eliminate_dead_code()  # placeholders of packed data
            program.graph_module.recompile()
        _refuse_varying_sizes(program)
        reject_random_operators(program)
        _refuse_mutation(program)
        padded = notes["padded_timesteps"]
        longest = None if padded is None else required_longest(program, func, tensors, in_tree, padded)
    return ExportedFunction(program, in_tree, notes["out_tree"], longest)


class _Function(torch.nn.Module):
    """A plain function as a module without parameters."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = [function]  # in a list, because a module as an attribute would be registered

    def forward(self, *arguments: Any) -> Any:
        return self._function[0](*arguments)


@contextmanager
def eval_mode(func: Function) -> Iterator[None]:
    """Set a module and its submodules to eval mode, and restore the mode of each afterwards."""
    modes = {child: child.training for child in func.modules()} if isinstance(func, torch.nn.Module) else {}
    for child in modes:
        child.training = False
    try:
        yield
    finally:
        for child, training in modes.items():
            child.training = training


def _flat_forward(
    called: Function, module: torch.nn.Module, in_tree: pytree.TreeSpec, held: Sequence[str], notes: dict[str, Any]
) -> Function:
    """Wrap forward() to take and return flat tensors; `notes` gets the structure of the outputs and what was padded."""
    own, count = module.forward, in_tree.num_leaves

    def forward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments = pytree.tree_unflatten(list(tensors[:count]), in_tree)
        others = dict(zip(held, tensors[count:], strict=True))
        possible = (len(one) for one in tensors[:count] if one.dim() == 1 and not one.is_floating_point())
        rows = next(possible, None)  # if any input can hold lengths: `lengths.tolist()` must stay in the program
        with _substituted(module, others), packed_sequence_mode(rows) as mode:
            outputs = own(*arguments)
            reject_packed_outputs(outputs)
        notes["padded_timesteps"] = mode.padded_timesteps
        leaves, notes["out_tree"] = pytree.tree_flatten(outputs)
        reject_non_tensors("the function", leaves)
        if not leaves:
            raise LoweringError("the function returns no tensor")
        return tuple(leaves)

    names = _names(own if called is module else called, in_tree, count, held)
    named: Callable[..., Any] = with_parameter_names(forward, names)
    return named


def _names(forward: Function, in_tree: pytree.TreeSpec, count: int, held: Sequence[str]) -> list[str]:
    """Name each input for messages: the parameter's name, with a number for each tensor of a tuple."""
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
def _substituted(module: torch.nn.Module, held: Mapping[str, torch.Tensor]) -> Iterator[None]:
    with ExitStack() as stack:
        for path, tensor in held.items():
            parent, _, name = path.rpartition(".")
            owner = module.get_submodule(parent)
            table: dict[str, Any] = owner._buffers if name in owner._buffers else owner._parameters
            stack.callback(table.__setitem__, name, table[name])
            table[name] = tensor
        yield


def _refuse_varying_sizes(program: torch.export.ExportedProgram) -> None:
    for node in program.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and not all(isinstance(size, int) for size in value.shape):
                raise LoweringError(
                    f"the shape of the output of {node.target}{source_suffix(node_line(node))} depends on the values "
                    "of the inputs, which a program of fixed shapes cannot follow"
                )


def _refuse_mutation(program: torch.export.ExportedProgram) -> None:
    """Refuse changes in place: a program cannot reach the tensors that the function would change."""
    with quiet():
        signature = program.run_decompositions({}).graph_signature
    if changed := [*signature.user_inputs_to_mutate.values(), *signature.buffers_to_mutate.values()]:
        raise LoweringError(
            f"the function changes {', '.join(map(repr, changed))} in place: return the new value instead, and name it "
            "in input_output_aliases if the next call needs it"
        )
