"""Operators of a program, their names in torch that users write and read, and export of a module at fixed sizes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.export import ExportedProgram

from ...config.partitioner import PartitionerConfig
from ..exported_program import is_assertion, quiet
from ..interface import CompileError


def operators_of(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the calls that compute something, without assertions and selections from several results."""
    calls = (node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return [node for node in calls if not is_assertion(node)]


def operator_name(node: torch.fx.Node) -> str:
    """Return the operator's name without its overload, e.g. `aten::sort`."""
    assert isinstance(node.target, torch._ops.OpOverload)
    return str(node.target._schema.name)


def torch_operator_name(node: torch.fx.Node) -> str:
    """Return the operator's name in torch: `aten::lstm`, `aten::gru` and so on for an abstract recurrence."""
    name = operator_name(node)
    return {"neuron_lstm::lstm": "aten::lstm", "neuron_lstm::rnn": f"aten::{_cell(node)}"}.get(name, name)


def _cell(node: torch.fx.Node) -> object:
    return node.args[4] if len(node.args) > 4 else None


def operator_names(node: torch.fx.Node) -> frozenset[str]:
    """Return the names that users may write for an operator; a recurrence has two."""
    return frozenset({operator_name(node), torch_operator_name(node)})


def queried_operators(operators: Iterable[torch.fx.Node], config: PartitionerConfig) -> list[torch.fx.Node]:
    """Return the operators that an engine is queried about."""
    return [node for node in operators if not operator_names(node) & config.ignored]


def example_input(node: torch.fx.Node) -> torch.Tensor:
    """Return a tensor of ones with the sizes of a value. Raises `CompileError`: the value is not a tensor."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise CompileError(f"{node.name} is not a tensor, and only tensors can be passed between an engine and the CPU")
    return torch.ones(tuple(int(size) for size in value.shape), dtype=value.dtype)


def export_module(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Export a module at the inputs' sizes."""
    with quiet(), torch.no_grad():
        return torch.export.export(module, inputs, strict=False)
