"""Graph partitioning: a program as segments for an engine and for the CPU, in order of execution.

torch.fx's capability partitioner fuses the operators that the engine supports into as few partitions as possible
without a cycle, and then the others in the same way. Each partition becomes an exported program, in which the weights
keep their names in the model's state dict: all segments share the one copy.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ...config.partitioner import UNLIMITED, PartitionerConfig
from ..assertions import is_assertion
from ..exported_program import module_with, quiet
from ..exported_tensors import weight_names, weights_of
from ..interface import CompileError
from .partitioned_program import Target

_LOG = logging.getLogger("torchserve_neuron_lstm.partitioner")
"""Logger that reports the segments of each program at INFO."""

Supported = Callable[[torch.fx.Node], bool]
"""Function that returns whether an engine supports a call of a program with fixed sizes."""


class PartitionError(ValueError):
    """The segments violate an option of the partitioner. The message names the option, and what to do."""


@dataclass(frozen=True)
class Segment:
    """A part of a program that runs on one target."""

    target: Target
    program: ExportedProgram
    """Program of fixed sizes; inputs and outputs are tensors, weights are named as in the whole program."""
    inputs: tuple[str, ...]
    """Names of its input values, in order: inputs of the whole program, or outputs of earlier segments."""
    outputs: tuple[str, ...]
    """Names of its output values, in order."""
    operators: tuple[str, ...]
    """Names of its operators in torch, e.g. ("aten::linear", "aten::lstm")."""


@dataclass(frozen=True)
class Segments:
    """A whole program as segments, first to last."""

    inputs: tuple[str, ...]
    """Names of the program's inputs, in order."""
    segments: tuple[Segment, ...]
    outputs: tuple[str, ...]
    """Names of the program's outputs, in order."""


def partition(program: ExportedProgram, supported: Supported, config: PartitionerConfig | None = None) -> Segments:
    """Partition a program of fixed sizes between an engine and the CPU.

    `supported` is called for each operator that `config` does not name itself.

    Raises:
        PartitionError: the segments violate an option of `config`.
        CompileError: the program has control flow, or writes to its own buffers.
    """
    config = config or PartitionerConfig()
    graph = _graph_of(program)
    operators = operators_of(graph)
    support = {node: supported(node) for node in queried_operators(operators, config)}
    _check_support(support, config)
    on_cpu = {node for node, is_supported in support.items() if not is_supported}
    on_cpu |= {node for node in operators if operator_names(node) & config.on_cpu}
    copies = _with_outputs_computed(graph)
    if on_cpu and on_cpu.issuperset(operators):
        on_cpu |= copies  # the engine would have nothing else
    on_cpu |= _without_inputs(on_cpu, program, graph)
    module = _fused(torch.fx.GraphModule(program.graph_module, graph), on_cpu)
    segments = _SegmentBuilder(program, module).segments()
    _LOG.info("%d segments: %s", len(segments.segments), _listed(segments.segments))
    _check_segments(segments.segments, config)
    return segments


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


def _graph_of(program: ExportedProgram) -> torch.fx.Graph:
    """Copy the program's graph without its assertions.

    Raises:
        CompileError: the program cannot be partitioned.
    """
    graph: torch.fx.Graph = copy.deepcopy(program.graph)
    if any(node.op == "get_attr" for node in graph.nodes):
        raise CompileError("a program with control flow cannot be partitioned between an engine and the CPU")
    mutated = [spec.target for spec in program.graph_signature.output_specs if spec.kind.name != "USER_OUTPUT"]
    if mutated:
        raise CompileError(f"the program writes to {', '.join(map(str, mutated))}: it cannot be partitioned")
    for node in reversed(list(graph.nodes)):
        if is_assertion(node):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return graph


def _with_outputs_computed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Replace each input or weight that is an output with a copy, and return the copies."""
    output, copies = graph.output_node(), set()
    with graph.inserting_before(output):
        for node in output.all_input_nodes:
            if node.op == "placeholder":
                made = graph.call_function(torch.ops.aten.clone.default, (node,))
                made.meta = dict(node.meta)
                output.replace_input_with(node, made)
                copies.add(made)
    return copies


def _check_support(support: Mapping[torch.fx.Node, bool], config: PartitionerConfig) -> None:
    share = sum(support.values()) / len(support) if support else 1.0
    if share < config.model_support_percentage_threshold:
        names = sorted({torch_operator_name(node) for node, is_supported in support.items() if not is_supported})
        raise PartitionError(
            f"model_support_percentage_threshold: the engine supports {share:.1%} of the model's operators, and "
            f"{config.model_support_percentage_threshold:.1%} are required (unsupported: {', '.join(names)}); use "
            f"another engine, or lower the threshold"
        )


def _check_segments(segments: Sequence[Segment], config: PartitionerConfig) -> None:
    if config.max_subgraph_count != UNLIMITED and len(segments) > config.max_subgraph_count:
        raise PartitionError(
            f"max_subgraph_count: the program has {len(segments)} segments ({_listed(segments)}), and at most "
            f"{config.max_subgraph_count} are allowed; raise the limit, or name in ops_to_partition the operators "
            f"between two segments on the CPU"
        )
    small = [segment for segment in segments if len(segment.operators) < config.min_subgraph_size]
    if small:
        raise PartitionError(
            f"min_subgraph_size: {len(small)} of {len(segments)} segments have fewer than {config.min_subgraph_size} "
            f"operators ({_listed(small)}); lower the limit, or name operators next to them in ops_to_partition"
        )


def _listed(segments: Sequence[Segment]) -> str:
    return "; ".join(f"{segment.target}: {', '.join(dict.fromkeys(segment.operators))}" for segment in segments)


def _without_inputs(on_cpu: set[torch.fx.Node], program: ExportedProgram, graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return calls that depend on no input, e.g. zeros or a sum of weights, and that the CPU reads.

    On the engine they could be a segment without inputs, which some compilers cannot trace.
    """
    inputs = set(program.graph_signature.user_inputs)
    free: set[torch.fx.Node] = set()
    for node in graph.nodes:
        weight = node.op == "placeholder" and node.name not in inputs
        if weight or (node.op == "call_function" and free.issuperset(node.all_input_nodes)):
            free.add(node)
    moved: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in free and any(user in on_cpu or user in moved for user in node.users):
            moved.add(node)
    return moved


class _Chosen(OperatorSupportBase):
    """Selection of nodes in the form that torch.fx's partitioner needs."""

    def __init__(self, chosen: Callable[[torch.fx.Node], bool]) -> None:
        self._chosen = chosen

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        """Whether the node belongs into a partition."""
        return node.op == "call_function" and self._chosen(_producer(node))


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    """Return the call that computes a value; for one of several results, the call that returns all."""
    while node.op == "call_function" and node.target is operator.getitem:
        (node,) = node.all_input_nodes
    return node


def _fused(module: torch.fx.GraphModule, on_cpu: set[torch.fx.Node]) -> torch.fx.GraphModule:
    """Fuse the graph into calls of modules `device_0`, `cpu_0` and so on, in order of execution."""
    module = _with_parts(module, lambda node: node not in on_cpu, "device_")
    # The remaining nodes are single calls, next to the calls of the new modules.
    return _with_parts(module, lambda node: node.op == "call_function", "cpu_")


def _with_parts(
    module: torch.fx.GraphModule, chosen: Callable[[torch.fx.Node], bool], prefix: str
) -> torch.fx.GraphModule:
    partitioner = CapabilityBasedPartitioner(module, _Chosen(chosen), allows_single_node_partition=True)
    return partitioner.fuse_partitions(partitioner.propose_partitions(), prefix=prefix)


class _SegmentBuilder:
    """Builder of segments from a fused graph; names the values that go from one segment to the next."""

    def __init__(self, program: ExportedProgram, module: torch.fx.GraphModule) -> None:
        self._program, self._module = program, module
        self._tensors = _tensors_of(program)
        self._names: dict[torch.fx.Node, str] = {}

    def segments(self) -> Segments:
        inputs = tuple(str(name) for name in self._program.graph_signature.user_inputs)
        for node in self._module.graph.nodes:
            if node.op == "placeholder" and node.name in inputs:
                self._names[node] = node.name
        segments = tuple(self._segment(node) for node in self._module.graph.nodes if node.op == "call_module")
        outputs = tuple(self._names[node] for node in _flat(self._module.graph.output_node().args[0]))
        return Segments(inputs, segments, outputs)

    def _segment(self, call: torch.fx.Node) -> Segment:
        part = self._module.get_submodule(str(call.target))
        assert isinstance(part, torch.fx.GraphModule)
        # The placeholders of the partition are in the order of the arguments of its call.
        arguments = dict(zip(part.graph.find_nodes(op="placeholder"), call.args, strict=True))
        weights = {node: self._tensors[arg.name] for node, arg in arguments.items() if arg.name in self._tensors}
        inputs = tuple(self._names[arg] for node, arg in arguments.items() if node not in weights)
        outputs = tuple(self._name_result(call, index) for index in range(len(_flat(part.graph.output_node().args[0]))))
        return Segment(
            target="device" if str(call.target).startswith("device_") else "cpu",
            program=_exported(part, weights),
            inputs=inputs,
            outputs=outputs,
            operators=tuple(torch_operator_name(node) for node in operators_of(part.graph)),
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
    """A parameter, buffer or constant of the whole program."""

    target: str
    tensor: torch.Tensor
    persistent: bool
    """Whether the state dict contains it."""


def _tensors_of(program: ExportedProgram) -> dict[str, _Weight]:
    """Return the program's tensors by placeholder."""
    persistent, values = program.state_dict, weights_of(program)
    names = weight_names(program)
    return {name: _Weight(target, values[target], target in persistent) for name, target in names.items()}


def _exported(part: torch.fx.GraphModule, weights: Mapping[torch.fx.Node, _Weight]) -> ExportedProgram:
    """Export a partition as a program, with its weights under their own names and its results in a tuple."""
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
    _forget_in_state_dict(module, [weight.target for weight in weights.values() if not weight.persistent])
    return export_module(module, tuple(inputs))


def example_input(node: torch.fx.Node) -> torch.Tensor:
    """Return a tensor of ones with the sizes of a value.

    Raises:
        CompileError: the value is not a tensor.
    """
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise CompileError(f"{node.name} is not a tensor, and only tensors can be passed between an engine and the CPU")
    return torch.ones(tuple(int(size) for size in value.shape), dtype=value.dtype)


def _forget_in_state_dict(module: torch.nn.Module, targets: Iterable[str]) -> None:
    """Make buffers non-persistent again: a GraphModule copies them all as part of its state dict."""
    for target in targets:
        owner, _, name = target.rpartition(".")
        module.get_submodule(owner)._non_persistent_buffers_set.add(name)


def export_module(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """Export a module at the inputs' sizes."""
    with quiet(), torch.no_grad():
        return torch.export.export(module, inputs, strict=False)
