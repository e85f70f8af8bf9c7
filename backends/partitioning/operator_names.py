"""Operators of a program, their names in torch that users write and read, and export of a module at fixed sizes."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from ...config.partitioner import PartitionerBlock
from ..exported_program import is_assertion, quiet
from ..interface import CompileError


def operators_of(graph: Graph) -> list[Node]:
    """Return the calls that compute something, without assertions and selections from several results."""
    calls = (node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return [node for node in calls if not is_assertion(node)]


def operator_name(node: Node) -> str:
    """Return the operator's name without its overload, e.g. `aten::sort`."""
    assert isinstance(node.target, torch._ops.OpOverload)
    return str(node.target._schema.name)


def torch_operator_name(node: Node) -> str:
    """Return the operator's name in torch: `aten::lstm`, `aten::gru` and so on for an abstract recurrence."""
    name = operator_name(node)
    cell = node.args[4] if len(node.args) > 4 else None
    return {"neuron_lstm::lstm": "aten::lstm", "neuron_lstm::rnn": f"aten::{cell}"}.get(name, name)


def operator_names(node: Node) -> frozenset[str]:
    """Return the names that users may write for an operator; a recurrence has two."""
    return frozenset({operator_name(node), torch_operator_name(node)})


def queried_operators(operators: Iterable[Node], config: PartitionerBlock) -> list[Node]:
    """Return the operators that an engine is queried about."""
    return [node for node in operators if not operator_names(node) & config.ignored]


def example_input(node: Node) -> torch.Tensor:
    """Return a tensor of ones with the sizes of a value. Raises `CompileError`: the value is not a tensor."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise CompileError(f"{node.name} is not a tensor, and only tensors can be passed between an engine and the CPU")
    return torch.ones(tuple(int(size) for size in value.shape), dtype=value.dtype)


def single_operator_program(node: Node) -> ExportedProgram:
    """Export one call of a program of fixed sizes as a separate program, with tensors as inputs.

    Raises `CompileError`: an argument is computed and not a tensor.
    """
    graph = Graph()
    copies = {source: graph.placeholder(f"input_{index}") for index, source in enumerate(node.all_input_nodes)}
    call = graph.node_copy(node, lambda source: copies[source])
    graph.output(tuple(_tensors(graph, call, node.meta["val"])))
    examples = tuple(example_input(source) for source in copies)
    return export_module(GraphModule(torch.nn.Module(), graph), examples)


def _tensors(graph: Graph, call: Node, value: Any) -> list[Node]:
    if isinstance(value, torch.Tensor):
        return [call]
    indices = [index for index, part in enumerate(value) if isinstance(part, torch.Tensor)]
    return [graph.call_function(operator.getitem, (call, index)) for index in indices]


def export_module(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Export a module at the inputs' sizes."""
    with quiet(), torch.no_grad():
        return torch.export.export(module, inputs, strict=False)
