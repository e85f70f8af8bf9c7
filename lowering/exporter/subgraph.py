"""Parts of an exported program: its subgraphs as programs, and its weights and constants, held by a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.export import ExportedProgram

from ...backends.exported_program import module_with
from ...backends.exported_tensors import weight_names, weights_of
from ...bucketing.shapes import Axis, TensorSpec
from ..exported_graph import axis_of, user_inputs
from .export import EXAMPLE_SIZES, dynamic_shape, example_tensor, export_quietly

MakeCall = Callable[[Callable[[torch.fx.Node], torch.fx.Node]], torch.fx.Node]
"""A function that appends calls in place of one, by the copies of the nodes that it needs."""


class SubgraphBuilder:
    """Builder of a graph from copies of nodes of `exported`.

    `inputs` are the layouts of the user's inputs in order, lengths last; None for an input that the subgraph lacks.
    """

    def __init__(self, exported: ExportedProgram, axes: dict[Axis, Any], inputs: Sequence[TensorSpec | None]) -> None:
        self._exported, self._axes = exported, axes
        self._graph = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self._calls: dict[torch.fx.Node, tuple[Sequence[torch.fx.Node], MakeCall]] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._steps: dict[str, torch.nn.Module] = {}
        self._names: set[str] = set()
        for node, spec in zip(user_inputs(exported), inputs, strict=True):
            if spec is not None:
                self._copies[node] = self.lengths = self.placeholder(node.name)

    def placeholder(self, name: str) -> torch.fx.Node:
        """Append an input."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return self._graph.placeholder(name)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> torch.fx.Node:
        """Append a call."""
        return self._graph.call_function(function, arguments, options)

    def substitute(self, nodes: Iterable[torch.fx.Node], value: torch.fx.Node) -> None:
        """Use `value` instead of `nodes`; nodes that only these need are not copied."""
        self._copies.update(dict.fromkeys(nodes, value))

    def replace_call(self, node: torch.fx.Node, sources: Sequence[torch.fx.Node], make: MakeCall) -> None:
        """Use the result of `make` instead of one call; it is given a function from `sources` to their copies."""
        self._calls[node] = sources, make

    def copy_nodes(self, wanted: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
        """Copy nodes and all that they need, in the order of the graph; return the copies."""
        needed = self._needed(wanted)
        for node in self._exported.graph.nodes:
            if node in needed:
                self._copies[node] = self._copy(node)
        return [self._copies[node] for node in wanted]

    def _needed(self, wanted: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
        """Collect the nodes that are not copied yet."""
        needed = set(wanted).difference(self._copies)
        for node in reversed(self._exported.graph.nodes):
            if node in needed and not self._is_batch(node):
                sources = self._calls[node][0] if node in self._calls else node.all_input_nodes
                needed.update(source for source in sources if source not in self._copies)
        return needed

    def _is_batch(self, node: torch.fx.Node) -> bool:
        """Whether a node is the batch size, which the subgraph may have to take from another input."""
        return node.op == "call_function" and axis_of(node.meta.get("val"), self._axes) == "batch"

    def _copy(self, node: torch.fx.Node) -> torch.fx.Node:
        if self._is_batch(node):
            return self.call(torch.ops.aten.sym_size.int, self.lengths, 0)
        if node.op != "call_function":
            return self._tensor(node) if node.op == "placeholder" else self._step(node)
        if node in self._calls:
            copied = self._calls[node][1](self._copies.__getitem__)
        else:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._copies.__getitem__)
            copied = self._graph.create_node(node.op, node.target, args, kwargs)
        copied.meta["stack_trace"] = node.meta.get("stack_trace")
        return copied

    def _tensor(self, node: torch.fx.Node) -> torch.fx.Node:
        """Add a parameter, buffer or constant under its own name."""
        if (target := weight_names(self._exported).get(node.name)) is None:
            raise ValueError(f"it needs the input {node.name}, of which a chunk has only its own timesteps")
        self._tensors[target] = weights_of(self._exported)[target]
        return self._graph.get_attr(target)

    def _step(self, node: torch.fx.Node) -> torch.fx.Node:
        """Add the graph of the step of a scan under its own name."""
        target = str(node.target)
        self._steps[target] = self._exported.graph_module.get_submodule(target)
        return self._graph.get_attr(target)

    def export(self, outputs: Sequence[torch.fx.Node], specs: Sequence[TensorSpec]) -> ExportedProgram:
        """Export the subgraph for every shape; `specs` are the layouts of its inputs in order."""
        self._graph.output(tuple(outputs))
        root = module_with(self._tensors, self._exported.state_dict)
        for name, step in self._steps.items():
            root.add_module(name, step)
        module = torch.fx.GraphModule(root, self._graph)
        dims = {name: torch.export.Dim(name, min=1) for name in self._axes}
        tensors = [example_tensor(spec, EXAMPLE_SIZES["batch"], EXAMPLE_SIZES["time"]) for spec in specs]
        return export_quietly(module, tensors, [dynamic_shape(spec, dims) for spec in specs])


def holder_of(exported: torch.export.ExportedProgram) -> torch.nn.Module:
    """Build a module with all tensors of the program by their names."""
    tensors = weights_of(exported)
    own = {name: tensors[name] for name in weight_names(exported).values() if name in tensors}
    return module_with(own, exported.state_dict)


def tensors_by_placeholder(exported: torch.export.ExportedProgram, holder: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that `holder` has now, by the placeholders of the graph."""
    return {name: attrgetter(target)(holder) for name, target in weight_names(exported).items()}
