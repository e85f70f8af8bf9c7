"""A program divided into segments for an engine and for the CPU, in the order in which they run.

torch.fx's capability partitioner puts what the engine takes into as few parts as can be without a cycle, and then what
is left in the same way. Each part becomes an exported program of its own, in which the weights keep their names in the
model's state dict: all segments share the one copy.
"""

from __future__ import annotations

import copy
import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ...bucketing.shapes import Bucket
from ...config.partitioner import UNLIMITED, PartitionerConfig
from ..interface import CompileError
from ..signature import signature_of

Target = Literal["device", "cpu"]

_ASSERTION = "aten::_assert"
_LOG = logging.getLogger("torchserve_neuron_lstm.partitioner")
"""At INFO it says what each program falls into."""

Supported = Callable[[torch.fx.Node], bool]
"""Whether an engine takes an operator of a program with fixed sizes."""


class PartitionError(ValueError):
    """The segments that came out are not what the partitioner's options ask for; says which option, and what to do."""


@dataclass(frozen=True)
class Segment:
    """A part of a program that runs in one place."""

    target: Target
    program: torch.export.ExportedProgram
    """Of fixed sizes; takes and returns tensors alone. Weights are named as in the whole program."""
    inputs: tuple[str, ...]
    """The values that are its inputs, in order: inputs of the whole, or what earlier segments give."""
    outputs: tuple[str, ...]
    """Names of the values that it returns, in order."""
    operators: tuple[str, ...]
    """What it computes, in torch's words, as in ("aten::linear", "aten::lstm")."""


@dataclass(frozen=True)
class Segments:
    """A whole program as segments, first to last."""

    inputs: tuple[str, ...]
    """Names of the program's inputs, in order."""
    segments: tuple[Segment, ...]
    outputs: tuple[str, ...]
    """The values that the program returns, in order."""


def partition(
    program: torch.export.ExportedProgram, supported: Supported, config: PartitionerConfig | None = None
) -> Segments:
    """Divide a program of fixed sizes (see `at_sizes`) between an engine and the CPU.

    `supported` is asked about each operator that `config` does not name itself.

    Raises:
        PartitionError: what comes out is not what `config` asks for.
        CompileError: the program has control flow, or writes to its own buffers.
    """
    config = config or PartitionerConfig()
    graph = _graph_of(program)
    operators = operators_of(graph)
    found = {node: supported(node) for node in queried_operators(operators, config)}
    _check_support(found, config)
    on_cpu = {node for node, taken in found.items() if not taken}
    on_cpu |= {node for node in operators if operator_names(node) & config.on_cpu}
    copies = _with_outputs_computed(graph)
    if on_cpu and on_cpu.issuperset(operators):
        on_cpu |= copies  # nothing else would be the engine's
    on_cpu |= _without_inputs(on_cpu, program, graph)
    module = _fused(torch.fx.GraphModule(program.graph_module, graph), on_cpu)
    segments = _Order(program, module).segments()
    _LOG.info("%d segments: %s", len(segments.segments), _listed(segments.segments))
    _check_segments(segments.segments, config)
    return segments


def at_sizes(program: torch.export.ExportedProgram, bucket: Bucket) -> torch.export.ExportedProgram:
    """A program of symbolic batch and time at a bucket's sizes, without in-place operators."""
    inputs = tuple(
        torch.ones([int(size) for size in kind.shape], dtype=kind.torch_dtype)
        for kind in signature_of(program, bucket).inputs.values()
    )
    with _quiet(), torch.no_grad():
        # Without in-place operators first: on a constant of a saved program torch refuses to trace them again.
        functional = program.run_decompositions({})
        return torch.export.export(functional.module(), inputs, strict=False)


def operators_of(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The calls that compute something: neither assertions, nor the picking of one result out of several."""
    calls = (node for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return [node for node in calls if not operator_name(node).startswith(_ASSERTION)]


def operator_name(node: torch.fx.Node) -> str:
    """As torch writes it, without the overload: `aten::sort`."""
    assert isinstance(node.target, torch._ops.OpOverload)
    return str(node.target._schema.name)


def torch_operator_name(node: torch.fx.Node) -> str:
    """What the operator is called in torch: an abstract recurrence stands for `aten::lstm`, `aten::gru` and so on."""
    name = operator_name(node)
    return {"neuron_lstm::lstm": "aten::lstm", "neuron_lstm::rnn": f"aten::{_cell(node)}"}.get(name, name)


def _cell(node: torch.fx.Node) -> object:
    return node.args[4] if len(node.args) > 4 else None


def operator_names(node: torch.fx.Node) -> frozenset[str]:
    """What people may call an operator: a recurrence has torch's own name beside the abstract operator's."""
    return frozenset({operator_name(node), torch_operator_name(node)})


def queried_operators(operators: Iterable[torch.fx.Node], config: PartitionerConfig) -> list[torch.fx.Node]:
    """The operators that an engine is asked about."""
    return [node for node in operators if not operator_names(node) & config.ignored]


def _graph_of(program: torch.export.ExportedProgram) -> torch.fx.Graph:
    """The program's graph to be changed, without assertions.

    Raises:
        CompileError: it has what cannot be divided.
    """
    graph: torch.fx.Graph = copy.deepcopy(program.graph)
    if any(node.op == "get_attr" for node in graph.nodes):
        raise CompileError("a program with control flow in its graph cannot be divided between an engine and the CPU")
    mutated = [spec.target for spec in program.graph_signature.output_specs if spec.kind.name != "USER_OUTPUT"]
    if mutated:
        raise CompileError(f"the program writes to {', '.join(map(str, mutated))}: it cannot be divided")
    for node in reversed(list(graph.nodes)):
        if isinstance(node.target, torch._ops.OpOverload) and operator_name(node).startswith(_ASSERTION):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    return graph


def _with_outputs_computed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Make each input or weight that is an output the result of a copy. Returns the copies."""
    output, copies = graph.output_node(), set()
    with graph.inserting_before(output):
        for node in output.all_input_nodes:
            if node.op == "placeholder":
                made = graph.call_function(torch.ops.aten.clone.default, (node,))
                made.meta = dict(node.meta)
                output.replace_input_with(node, made)
                copies.add(made)
    return copies


def _check_support(found: Mapping[torch.fx.Node, bool], config: PartitionerConfig) -> None:
    share = sum(found.values()) / len(found) if found else 1.0
    if share < config.model_support_percentage_threshold:
        names = sorted({torch_operator_name(node) for node, taken in found.items() if not taken})
        raise PartitionError(
            f"model_support_percentage_threshold: the engine takes {share:.1%} of the model's operators, and "
            f"{config.model_support_percentage_threshold:.1%} are asked for (not taken: {', '.join(names)}); use "
            f"another engine, or lower the threshold"
        )


def _check_segments(segments: Sequence[Segment], config: PartitionerConfig) -> None:
    if config.max_subgraph_count != UNLIMITED and len(segments) > config.max_subgraph_count:
        raise PartitionError(
            f"max_subgraph_count: the program falls into {len(segments)} segments ({_listed(segments)}), and at most "
            f"{config.max_subgraph_count} are asked for; raise the limit, or name operators in ops_to_partition that "
            f"lie between two segments on the CPU"
        )
    small = [segment for segment in segments if len(segment.operators) < config.min_subgraph_size]
    if small:
        raise PartitionError(
            f"min_subgraph_size: {len(small)} of {len(segments)} segments have fewer than {config.min_subgraph_size} "
            f"operators ({_listed(small)}); lower the limit, or name operators beside them in ops_to_partition"
        )


def _listed(segments: Sequence[Segment]) -> str:
    return "; ".join(f"{segment.target}: {', '.join(dict.fromkeys(segment.operators))}" for segment in segments)


def _without_inputs(
    on_cpu: set[torch.fx.Node], program: torch.export.ExportedProgram, graph: torch.fx.Graph
) -> set[torch.fx.Node]:
    """Calls that need no input, as those that make zeros or add up a weight, where the CPU reads what they make.

    Made by the engine they could be a segment that takes nothing, which some compilers cannot trace.
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
    """What the partitioner asks for each node."""

    def __init__(self, chosen: Callable[[torch.fx.Node], bool]) -> None:
        self._chosen = chosen

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        """Whether it belongs into one of the parts that are being made."""
        return node.op == "call_function" and self._chosen(_producer(node))


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    """What computes a value: for one of several results, the call that returns them all."""
    while node.op == "call_function" and node.target is operator.getitem:
        (node,) = node.all_input_nodes
    return node


def _fused(module: torch.fx.GraphModule, on_cpu: set[torch.fx.Node]) -> torch.fx.GraphModule:
    """The graph as calls of modules `device_0`, `cpu_0` and so on, in an order in which they can run."""
    module = _with_parts(module, lambda node: node not in on_cpu, "device_")
    # What is left are single calls, beside those of the modules just made.
    return _with_parts(module, lambda node: node.op == "call_function", "cpu_")


def _with_parts(
    module: torch.fx.GraphModule, chosen: Callable[[torch.fx.Node], bool], prefix: str
) -> torch.fx.GraphModule:
    partitioner = CapabilityBasedPartitioner(module, _Chosen(chosen), allows_single_node_partition=True)
    return partitioner.fuse_partitions(partitioner.propose_partitions(), prefix=prefix)


class _Order:
    """The calls of a fused graph as segments, with names for what goes from one to the next."""

    def __init__(self, program: torch.export.ExportedProgram, module: torch.fx.GraphModule) -> None:
        self._program, self._module = program, module
        self._tensors = _tensors_of(program)
        self._names: dict[torch.fx.Node, str] = {}

    def segments(self) -> Segments:
        inputs = tuple(str(name) for name in self._program.graph_signature.user_inputs)
        for node in self._module.graph.nodes:
            if node.op == "placeholder" and node.name in inputs:
                self._names[node] = node.name
        made = tuple(self._segment(node) for node in self._module.graph.nodes if node.op == "call_module")
        outputs = tuple(self._names[node] for node in _flat(self._module.graph.output_node().args[0]))
        return Segments(inputs, made, outputs)

    def _segment(self, call: torch.fx.Node) -> Segment:
        part = self._module.get_submodule(str(call.target))
        assert isinstance(part, torch.fx.GraphModule)
        # The part's inputs, in their order, stand for the arguments of its call.
        given = dict(zip(part.graph.find_nodes(op="placeholder"), call.args, strict=True))
        weights = {node: self._tensors[arg.name] for node, arg in given.items() if arg.name in self._tensors}
        inputs = tuple(self._names[arg] for node, arg in given.items() if node not in weights)
        outputs = tuple(self._given(call, index) for index in range(len(_flat(part.graph.output_node().args[0]))))
        return Segment(
            target="device" if str(call.target).startswith("device_") else "cpu",
            program=_exported(part, weights),
            inputs=inputs,
            outputs=outputs,
            operators=tuple(torch_operator_name(node) for node in operators_of(part.graph)),
        )

    def _given(self, call: torch.fx.Node, index: int) -> str:
        """Name one result of a call; one that nobody reads has a name too."""
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
    """Whether the state dict has it."""


def _tensors_of(program: torch.export.ExportedProgram) -> dict[str, _Weight]:
    """By placeholder."""
    signature = program.graph_signature
    targets = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    persistent = program.state_dict
    values = {**program.constants, **persistent}
    return {name: _Weight(target, values[target], target in persistent) for name, target in targets.items()}


def _exported(part: torch.fx.GraphModule, weights: Mapping[torch.fx.Node, _Weight]) -> torch.export.ExportedProgram:
    """A part as a program, with its weights under their own names and results in a tuple."""
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
    module = torch.fx.GraphModule(_holding(weights.values()), graph)
    _forget_in_state_dict(module, [weight.target for weight in weights.values() if not weight.persistent])
    return exported_quietly(module, tuple(inputs))


def example_input(node: torch.fx.Node) -> torch.Tensor:
    """A tensor of ones of the sizes of a value.

    Raises:
        CompileError: the value is no tensor.
    """
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise CompileError(f"{node.name} is no tensor, and nothing else can go from an engine to the CPU or back")
    return torch.ones(tuple(int(size) for size in value.shape), dtype=value.dtype)


def _holding(weights: Iterable[_Weight]) -> torch.nn.Module:
    """A module that has these tensors under their dotted names."""
    root = torch.nn.Module()
    for target, tensor, _ in weights:
        *path, name = target.split(".")
        owner = root
        for step in path:
            if not hasattr(owner, step):
                owner.add_module(step, torch.nn.Module())
            owner = owner.get_submodule(step)
        if isinstance(tensor, torch.nn.Parameter):
            owner.register_parameter(name, tensor)
        else:
            owner.register_buffer(name, tensor)
    return root


def _forget_in_state_dict(module: torch.nn.Module, targets: Iterable[str]) -> None:
    """Make constants of buffers again; a graph's module takes them all for part of the state dict."""
    for target in targets:
        owner, _, name = target.rpartition(".")
        module.get_submodule(owner)._non_persistent_buffers_set.add(name)


def exported_quietly(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """A program of the inputs' sizes."""
    with _quiet(), torch.no_grad():
        return torch.export.export(module, inputs, strict=False)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about its internals
        yield
