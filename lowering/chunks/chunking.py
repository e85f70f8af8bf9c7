"""Chunk programs: one for a chunk of every sequence, one each for the start and end of a sequence; and their check.

The programs are subgraphs of the lowered graph, with the carried values as additional inputs. At the border of a
program, the batch is the first dimension of every carried value, wherever the model has it. So the values of the first
rows of a batch are contiguous, and continuing with fewer rows copies nothing.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...backends.signature import dtype_name
from ...bucketing.execute_chunks import ChunkSignature, execute_chunks
from ...bucketing.padding import pad
from ...bucketing.plan import Plan, ProgramCall
from ...bucketing.shapes import Axis, Bucket, CarriedValue, DType, ProgramRole, TensorSpec
from ..errors import at_line, first_line
from ..exported_graph import axis_of, output_nodes, symbolic_sizes
from ..exporter.export import NEED_CELL
from ..exporter.random_values import is_close, random_requests
from ..exporter.subgraph import SubgraphBuilder
from ..program import ChunkPrograms
from ..ragged.value import limited
from .carry_analysis import NotChunkable, find_carried_values, timesteps_before
from .carry_source import CarrySource, initial_value_node, is_scan
from .past_timesteps import Copies, PastCall, replaced_arguments, timesteps_of_rows
from .timestep_rules import constant_value

LENGTHS = TensorSpec("sequence_lengths", "int64", ("batch",))

_COMBINE: dict[str, Callable[..., Any]] = {
    "sum": torch.ops.aten.add.Tensor,
    "max": torch.ops.aten.maximum.default,
    "min": torch.ops.aten.minimum.default,
}


def build_chunk_programs(exported: ExportedProgram, inputs: Sequence[TensorSpec]) -> ChunkPrograms:
    """Build the programs of a model over chunks of time.

    Raises `NotChunkable`: names the line that needs a whole sequence.
    """
    parts = _ProgramBuilder(exported, inputs, find_carried_values(exported, inputs))
    try:
        return ChunkPrograms(parts.chunk(), parts.head(), parts.start(), parts.carried, parts.reason_for_whole)
    except Exception as error:
        raise NotChunkable(f"a chunk program cannot be exported for every shape: {first_line(error)}") from error


class _ProgramBuilder:
    """Builder of the three programs of one model."""

    def __init__(self, exported: ExportedProgram, inputs: Sequence[TensorSpec], carries: Sequence[CarrySource]) -> None:
        self.exported, self.carries = exported, carries
        self.axes = symbolic_sizes(exported, inputs)
        self.before = timesteps_before(exported, inputs)
        self.inputs = [*inputs, *([] if self.before is None else [None]), LENGTHS]
        self.timeless_inputs = [spec if spec and spec.time_dim is None else None for spec in self.inputs]
        self.carried = tuple(CarriedValue(self.spec_of(carry), self.fill(carry)) for carry in carries)
        outputs = output_nodes(exported)
        self.step_outputs = [node for node in outputs if self.has_time(node)]
        self.final_outputs = [node for node in outputs if not self.has_time(node)]

    @property
    def reason_for_whole(self) -> str | None:
        """The reason why whole sequences are run where nothing needs chunks."""
        if past := [carry.name for carry in self.carries if carry.past is not None]:
            # A causal convolution before an LSTM: chunks took 1.02 to 1.30 times as long with onnxruntime, and 1.09 to
            # 1.43 times with openvino.
            return f"chunks of time would be slower: each copies the timesteps before it ({', '.join(past)})"
        if any(is_scan(carry.node) for carry in self.carries):
            return "chunks of time would save little: a step of a loop takes about as long for fewer sequences"
        if any(carry.kind == "cumsum" for carry in self.carries):
            return "chunks of time would round cumulative sums where they end"
        return None

    def has_time(self, node: Node) -> bool:
        return any(axis_of(size, self.axes) == "time" for size in node.meta["val"].shape)

    def spec_of(self, carry: CarrySource) -> TensorSpec:
        """Return the layout of a carried value, with the batch first.

        Raises `NotChunkable`: it is not one value for each row.
        """
        shape = tuple(axis_of(size, self.axes) or size for size in carry.value.shape)
        if shape.count("batch") != 1 or not all(isinstance(size, (int, str)) for size in shape):
            raise NotChunkable(f"{carry.name} has not exactly one value per sequence{at_line(carry.node)}")
        dtype = cast(DType, dtype_name(carry.value))
        rows_first = ("batch", *(size for size in shape if size != "batch"))
        return TensorSpec(carry.name, dtype, cast(tuple[int | Axis, ...], rows_first))

    def batch_dim(self, carry: CarrySource) -> int:
        """Return the batch dimension of a carried value in the model itself."""
        return [axis_of(size, self.axes) for size in carry.value.shape].index("batch")

    def carry_inputs(self, builder: SubgraphBuilder) -> list[Node]:
        """Add inputs for the carried values, and return them in the model's layout."""
        inputs = [builder.placeholder(f"carried_{index}") for index in range(len(self.carries))]
        pairs = zip(inputs, self.carries, strict=True)
        return [_moved(builder, node, 0, self.batch_dim(carry)) for node, carry in pairs]

    def carry_outputs(
        self, builder: SubgraphBuilder, values: Sequence[Node], carries: Sequence[CarrySource]
    ) -> list[Node]:
        """Return values of the model's layout as outputs, with the batch first."""
        return [_moved(builder, node, self.batch_dim(carry), 0) for node, carry in zip(values, carries, strict=True)]

    def fill(self, carry: CarrySource) -> float | None:
        """Return the number that fills a carried value before the first timestep. None if the model computes it."""
        if carry.kind == "state":
            return constant_value(initial_value_node(carry))
        if carry.past is not None:
            return carry.past.fill
        if carry.kind not in ("max", "min"):
            return 0.0
        number = limited(float("-inf") if carry.kind == "max" else float("inf"), carry.value.dtype)
        return int(number) if isinstance(number, bool) else number

    def chunk(self) -> ExportedProgram:
        """Build the program: inputs, lengths within the chunk, carried values -> outputs with time, carried values."""
        builder = SubgraphBuilder(self.exported, self.axes, self.inputs)
        carried = self.carry_inputs(builder)
        reads: dict[CarrySource, PastCall] = {}
        sums: dict[CarrySource, Node] = {}
        states: dict[Node, list[Node]] = {}
        for carry, value in zip(self.carries, carried, strict=True):
            if carry.past is not None:
                reads[carry] = PastCall(builder, carry.past, value)
                reads[carry].replace()
            elif carry.kind == "timesteps":
                builder.substitute([carry.node], value)
            elif carry.kind == "cumsum":
                _continue_sum(builder, carry, value, sums)
            elif carry.kind == "state":
                states.setdefault(carry.node, []).append(value)
        for node, values in states.items():
            _start_from(builder, node, values)
        wanted = [*self.step_outputs, *(carry.node for carry in self.carries)]
        steps = builder.copy_nodes(wanted)[: len(self.step_outputs)]  # all at once, which keeps the order of the graph
        after = [
            reads[carry].last_timesteps(self.batch_dim(carry))
            if carry in reads
            else _after(builder, carry, value, self.batch_dim(carry), sums)
            for carry, value in zip(self.carries, carried, strict=True)
        ]
        outputs = [*steps, *self.carry_outputs(builder, after, self.carries)]
        return builder.export(outputs, [*filter(None, self.inputs), *(value.spec for value in self.carried)])

    def head(self) -> ExportedProgram | None:
        """Build the program: inputs without time, lengths, carried values -> outputs without time; None without any."""
        if not self.final_outputs:
            return None
        builder = SubgraphBuilder(self.exported, self.axes, self.timeless_inputs)
        for carry, value in zip(self.carries, self.carry_inputs(builder), strict=True):
            own = carry.node.meta["val"].dtype if carry.kind == "sum" else carry.value.dtype
            builder.substitute(carry.results(), _cast(builder, value, carry.value.dtype, own))
        if self.before is not None:  # the lengths are those of whole sequences
            builder.substitute([self.before], builder.call(torch.ops.aten.zeros_like.default, builder.lengths))
        specs = [*filter(None, self.timeless_inputs), *(value.spec for value in self.carried)]
        return builder.export(builder.copy_nodes(self.final_outputs), specs)

    def start(self) -> ExportedProgram | None:
        """Build the program: inputs without time, lengths -> initial values that are no constants. None if all are."""
        computed = [c for c, value in zip(self.carries, self.carried, strict=True) if value.fill is None]
        if not computed:
            return None
        builder = SubgraphBuilder(self.exported, self.axes, self.timeless_inputs)
        initial = builder.copy_nodes([initial_value_node(carry) for carry in computed])
        return builder.export(self.carry_outputs(builder, initial, computed), [*filter(None, self.timeless_inputs)])


def _start_from(builder: SubgraphBuilder, recurrence: Node, states: Sequence[Node]) -> None:
    """Let a recurrence or a scan start from carried states; an LSTM computes its exact last cell state."""
    given: dict[int, object] = {1: states} if is_scan(recurrence) else dict(enumerate(states, 2))
    if recurrence.target is torch.ops.neuron_lstm.lstm.default:
        given[NEED_CELL] = True
    kept = pytree.tree_leaves([value for place, value in enumerate(recurrence.args) if place not in given])

    def make(copies: Copies) -> Node:
        return builder.call(recurrence.target, *replaced_arguments(recurrence, copies, given))  # type: ignore[arg-type]  # an operator

    builder.replace_call(recurrence, [value for value in kept if isinstance(value, Node)], make)


def _after(
    builder: SubgraphBuilder, carry: CarrySource, before: Node, rows: int, sums: Mapping[CarrySource, Node]
) -> Node:
    """Return a carried value after the chunk; `rows` is its batch dimension, `sums` are the cumulative ones."""
    (value,) = builder.copy_nodes([carry.node])
    if carry.kind == "timesteps":
        return builder.call(torch.ops.aten.add.Tensor, before, builder.lengths)
    if carry.kind == "cumsum":
        return _last_sum(builder, carry, sums[carry], rows)
    if carry.kind == "state":
        return builder.call(operator.getitem, value, carry.element)
    if carry.kind == "last":
        return value
    own = _cast(builder, value, carry.node.meta["val"].dtype, carry.value.dtype)
    return builder.call(_COMBINE[carry.kind], before, own)


def _continue_sum(builder: SubgraphBuilder, carry: CarrySource, before: Node, sums: dict[CarrySource, Node]) -> None:
    """Let a cumulative sum start from the carried one; `sums` gets its exact values."""
    node, dtype = carry.node, carry.value.dtype

    def make(copies: Copies) -> Node:
        added = builder.call(torch.ops.aten.to.dtype, copies(node.all_input_nodes[0]), node.meta["val"].dtype)
        own = builder.call(torch.ops.aten.cumsum.default, added, carry.summed_dim, dtype=dtype)
        first = builder.call(torch.ops.aten.unsqueeze.default, before, carry.summed_dim)
        sums[carry] = builder.call(torch.ops.aten.add.Tensor, own, first)
        return _cast(builder, sums[carry], dtype, node.meta["val"].dtype)

    builder.replace_call(node, node.all_input_nodes[:1], make)


def _last_sum(builder: SubgraphBuilder, carry: CarrySource, sums: Node, rows: int) -> Node:
    """Return the cumulative sum at the last timestep of each row. `rows` is the batch dimension of the result."""
    time, aten = carry.summed_dim, torch.ops.aten
    last = builder.call(aten.unsqueeze.default, builder.call(aten.sub.Tensor, builder.lengths, 1), 1)
    shape = [*carry.value.shape[:time], 1, *carry.value.shape[time:]]
    sums = timesteps_of_rows(builder, sums, last, shape, time, rows + (time <= rows))
    return builder.call(aten.squeeze.dim, sums, time)


def _cast(builder: SubgraphBuilder, node: Node, dtype: torch.dtype, to: torch.dtype) -> Node:
    return node if dtype is to else builder.call(torch.ops.aten.to.dtype, node, to)


def _moved(builder: SubgraphBuilder, node: Node, dim: int, to: int) -> Node:
    """Move one dimension of a tensor, and make it contiguous."""
    if dim == to:
        return node
    moved = builder.call(torch.ops.aten.movedim.int, node, dim, to)
    return builder.call(torch.ops.aten.contiguous.default, moved)


_CHECKED = (9, 7, 7, 4, 2, 1)
_TRIALS = 6


def check_chunked_equivalence(
    exported: ExportedProgram, chunked: ChunkPrograms, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> None:
    """Run the same requests alone as whole sequences, and together in chunks that are cut at random.

    Raises `NotChunkable`: an output differs, or a program fails.
    """
    requests = random_requests(inputs, _CHECKED, torch.Generator().manual_seed(0))
    whole = exported.module()
    parts = {part: program.module() for part, program in chunked.parts.items()}
    layout = ChunkSignature(inputs, outputs, chunked.carried)

    def run(part: ProgramRole, bucket: Bucket, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        results: Sequence[torch.Tensor] = parts[part](*tensors)
        return [result.contiguous() for result in results]

    with torch.no_grad():
        try:
            expected = [_alone(whole, item, length, inputs) for item, length in zip(requests, _CHECKED, strict=True)]
        except Exception as error:
            raise NotChunkable(f"the model cannot be run on sequences of every length: {error}") from error
        for seed in range(_TRIALS):
            plan = random_chunk_plan(_CHECKED, random.Random(seed))  # noqa: S311 - nothing here is secret
            try:
                results, _ = execute_chunks(plan, requests, _CHECKED, layout, run)
            except Exception as error:
                raise NotChunkable(f"the chunk programs cannot be run: {error}") from error
            _compare(results, expected, outputs)


def random_chunk_plan(lengths: Sequence[int], rng: random.Random) -> Plan:
    """Cut the time of a batch into chunks at random; each chunk runs all active rows.

    >>> len(random_chunk_plan([3, 5], random.Random(0)).heads[0].rows)
    2
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    calls = []
    start = 0
    while active := tuple(row for row in order if lengths[row] > start):
        step = rng.randint(1, lengths[order[0]] - start)
        calls.append(ProgramCall(Bucket(len(active), step), active, start))
        start += step
    return Plan(tuple(calls), (ProgramCall(Bucket(len(order), 1), tuple(order)),))


def _alone(
    whole: torch.nn.Module, item: Sequence[torch.Tensor], length: int, inputs: Sequence[TensorSpec]
) -> list[torch.Tensor]:
    batch = [pad([tensor], spec, Bucket(1, length)) for tensor, spec in zip(item, inputs, strict=True)]
    return list(whole(*batch, torch.tensor([length])))


def _compare(
    results: Sequence[Sequence[torch.Tensor]], expected: Sequence[Sequence[torch.Tensor]], outputs: Sequence[TensorSpec]
) -> None:
    for chunked, whole in zip(results, expected, strict=True):
        for ours, theirs, spec in zip(chunked, whole, outputs, strict=True):
            alone = theirs if spec.batch_dim is None else theirs.select(spec.batch_dim, 0)
            if not is_close(ours, alone):
                raise NotChunkable(f"chunked execution changes output {spec.name}")
