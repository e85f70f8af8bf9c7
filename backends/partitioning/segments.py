"""Segments: the parts of a fused graph as programs, with names for the values between them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram

from ..exported_program import module_with
from ..exported_tensors import weight_names, weights_of
from .operator_names import example_input, export_module, operators_of, torch_operator_name
from .partitioned_program import SegmentEntry, SegmentList


@dataclass(frozen=True)
class Segment(SegmentEntry):
    """A part of a program that runs in one place."""

    program: ExportedProgram
    """Program of fixed sizes; inputs and outputs are tensors, weights are named as in the whole program."""


@dataclass(frozen=True)
class Segments(SegmentList):
    """A whole program as segments, first to last."""

    segments: tuple[Segment, ...]


class SegmentBuilder:
    """Builder of segments from a fused graph; names the values that go from one segment to the next.

    The graph consists of calls of `device_0`, `cpu_0` and so on.
    """

    def __init__(self, program: ExportedProgram, module: torch.fx.GraphModule) -> None:
        self._program, self._module = program, module
        persistent, values, names = program.state_dict, weights_of(program), weight_names(program)
        self._tensors = {name: _Weight(target, values[target], target in persistent) for name, target in names.items()}
        self._names: dict[torch.fx.Node, str] = {}

    def segments(self) -> Segments:
        """Export each part of the graph. Raises `CompileError`: a value between two parts is not a tensor."""
        inputs = tuple(str(name) for name in self._program.graph_signature.user_inputs)
        for node in self._module.graph.nodes:
            if node.op == "placeholder" and node.name in inputs:
                self._names[node] = node.name
        segments = tuple(self._segment(node) for node in self._module.graph.nodes if node.op == "call_module")
        outputs = tuple(self._names[node] for node in _flat(self._module.graph.output_node().args[0]))
        return Segments(inputs, outputs, segments)

    def _segment(self, call: torch.fx.Node) -> Segment:
        part = self._module.get_submodule(str(call.target))
        assert isinstance(part, torch.fx.GraphModule)
        # The placeholders of the partition are in the order of the arguments of its call.
        arguments = dict(zip(part.graph.find_nodes(op="placeholder"), call.args, strict=True))
        weights = {node: self._tensors[arg.name] for node, arg in arguments.items() if arg.name in self._tensors}
        inputs = tuple(self._names[arg] for node, arg in arguments.items() if node not in weights)
        outputs = tuple(self._name_result(call, index) for index in range(len(_flat(part.graph.output_node().args[0]))))
        return Segment(
            place="device" if str(call.target).startswith("device_") else "cpu",
            takes=inputs,
            gives=outputs,
            operators=tuple(torch_operator_name(node) for node in operators_of(part.graph)),
            program=_exported(part, weights),
        )

    def _name_result(self, call: torch.fx.Node, index: int) -> str:
        """Name one result of a call, even if nothing reads it."""
        name = f"{call.target}.{index}"
        if not any(user.target is operator.getitem for user in call.users):
            self._names[call] = name
        for user in call.users:
            if user.target is operator.getitem and user.args[1] == index:
                self._names[user] = name
        return name


def _flat(nodes: Any) -> list[Any]:
    return list(nodes) if isinstance(nodes, tuple | list) else [nodes]


class _Weight(NamedTuple):
    target: str
    tensor: torch.Tensor
    persistent: bool
    """Whether the state dict contains it."""


def _exported(part: torch.fx.GraphModule, weights: Mapping[torch.fx.Node, _Weight]) -> ExportedProgram:
    """Export a partition as a program, with its weights under their names and its results in a tuple."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    inputs = []
    for node in part.graph.nodes:
        if node in weights:
            copies[node] = graph.get_attr(weights[node].target)
        elif node.op == "output":
            graph.output(tuple(copies[one] for one in _flat(node.args[0])))
        else:
            copies[node] = graph.node_copy(node, lambda one: copies[one])
            if node.op == "placeholder":
                inputs.append(example_input(node))
    root = module_with({target: tensor for target, tensor, _ in weights.values()}, ())
    module = torch.fx.GraphModule(root, graph)
    for weight in weights.values():
        if not weight.persistent:  # again: a GraphModule copies all buffers as part of its state dict
            owner, _, name = weight.target.rpartition(".")
            module.get_submodule(owner)._non_persistent_buffers_set.add(name)
    return export_module(module, tuple(inputs))
