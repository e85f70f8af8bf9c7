"""Graph partitioning: a program as segments for an engine and for the CPU, in order of execution.

torch.fx's capability partitioner fuses the operators that the engine supports into as few partitions as possible
without a cycle, and then the others in the same way. Each partition becomes an exported program, in which the weights
keep their names in the model's state dict: all segments share the one copy.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

from ...config.partitioner import UNLIMITED, PartitionerBlock
from ..exported_program import is_assertion
from ..interface import CompileError
from .operator_names import operator_names, operators_of, queried_operators, torch_operator_name
from .segments import Segment, SegmentBuilder, Segments

_LOG = logging.getLogger("torchserve_neuron_lstm.partitioner")
"""Logger that reports the segments of each program at INFO."""

Supported = Callable[[torch.fx.Node], bool]
"""Function that returns whether an engine supports a call of a program with fixed sizes."""


class PartitionError(ValueError):
    """The segments violate an option of the partitioner. The message names the option, and what to do."""


def partition(program: ExportedProgram, supported: Supported, config: PartitionerBlock | None = None) -> Segments:
    """Partition a program of fixed sizes between an engine and the CPU.

    `supported` is called for each operator that `config` does not name itself.

    Raises `PartitionError`: the segments violate an option of `config`.
    Raises `CompileError`: the program has control flow, or writes to its buffers.
    """
    config = config or PartitionerBlock()
    graph = _graph_of(program)
    operators = operators_of(graph)
    support = {node: supported(node) for node in queried_operators(operators, config)}
    _check_support(support, config)
    on_cpu = {node for node, is_supported in support.items() if not is_supported}
    on_cpu |= {node for node in operators if operator_names(node).intersection(config.ops_to_partition)}
    copies = _with_outputs_computed(graph)
    if on_cpu and on_cpu.issuperset(operators):
        on_cpu |= copies  # the engine would have nothing else
    on_cpu |= _without_inputs(on_cpu, program, graph)
    # Calls of modules `device_0`, `cpu_0` and so on, in order of execution.
    module = torch.fx.GraphModule(program.graph_module, graph)
    module = _with_parts(module, lambda node: node not in on_cpu, "device_")
    # The remaining nodes are single calls, next to the calls of the new modules.
    module = _with_parts(module, lambda node: node.op == "call_function", "cpu_")
    segments = SegmentBuilder(program, module).segments()
    _LOG.info("%d segments: %s", len(segments.segments), _listed(segments.segments))
    _check_segments(segments.segments, config)
    return segments


def _graph_of(program: ExportedProgram) -> torch.fx.Graph:
    """Copy the program's graph without its assertions. Raises `CompileError`: the program cannot be partitioned."""
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


def _check_support(support: Mapping[torch.fx.Node, bool], config: PartitionerBlock) -> None:
    share = sum(support.values()) / len(support) if support else 1.0
    if share < config.model_support_percentage_threshold:
        names = sorted({torch_operator_name(node) for node, is_supported in support.items() if not is_supported})
        raise PartitionError(
            f"model_support_percentage_threshold: the engine supports {share:.1%} of the model's operators, and "
            f"{config.model_support_percentage_threshold:.1%} are required (unsupported: {', '.join(names)}); use "
            f"another engine, or lower the threshold"
        )


def _check_segments(segments: Sequence[Segment], config: PartitionerBlock) -> None:
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
    return "; ".join(f"{segment.place}: {', '.join(dict.fromkeys(segment.operators))}" for segment in segments)


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


def _producer(node: torch.fx.Node) -> torch.fx.Node:
    """Return the call that computes a value; for one of several results, the call that returns all."""
    while node.op == "call_function" and node.target is operator.getitem:
        (node,) = node.all_input_nodes
    return node


def _with_parts(
    module: torch.fx.GraphModule, chosen: Callable[[torch.fx.Node], bool], prefix: str
) -> torch.fx.GraphModule:
    support = create_op_support(lambda _, node: node.op == "call_function" and chosen(_producer(node)))
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    return partitioner.fuse_partitions(partitioner.propose_partitions(), prefix=prefix)
