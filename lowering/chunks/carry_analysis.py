"""Carry analysis: the values that a model passes from one chunk of time to the next, as in `lax.scan`.

A model can be chunked under two conditions. First, every value at a timestep depends on that timestep, on earlier ones
through a recurrence or a cumulative sum, on a fixed number of those before it (`past_timesteps.py`), on its position
(if the program continues those of the chunk before), and on values of the whole request. Second, every value computed
from all timesteps is a final state, a last timestep, or a sum, maximum or minimum over time. These values are carried.
Timesteps may use the lengths only to detect padding, in a comparison with their positions: in a chunk, the lengths
count its own timesteps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import cast

from torch.export import ExportedProgram
from torch.fx import Node

from ...bucketing.shapes import TensorSpec
from ..errors import at_line, node_line, source_suffix
from ..exported_graph import (
    argument,
    dims_argument,
    display_name,
    named_at,
    operator_name,
    output_nodes,
    rule_table,
    symbolic_sizes,
    user_inputs,
)
from ..ragged.batched import has_time
from .carry_source import CarryKind, CarrySource, is_scan, scan_of
from .past_timesteps import PastReads
from .timestep_rules import (
    FACTORIES,
    FILL_FACTORIES,
    INDEPENDENT,
    PER_TIMESTEP,
    VALUE_PRESERVING,
    Tainted,
    TaintMap,
    is_number,
    is_timestep_local,
    transfer,
)

_RECURRENCES = {"neuron_lstm.lstm": 2, "neuron_lstm.rnn": 1}  # their number of states
_REDUCTIONS: dict[str, CarryKind] = rule_table(("sum", "sum"), ("max", "amax any"), ("min", "amin all"))
_EXTREMES: dict[str, CarryKind] = rule_table(("max", "max"), ("min", "min"))
_SAME_AT_EVERY_STEP = {*FACTORIES, *FILL_FACTORIES, "aten.expand", "aten.repeat"}  # operators that create timesteps
_MIRRORED = {"aten.lt": "aten.gt", "aten.le": "aten.ge", "aten.gt": "aten.lt", "aten.ge": "aten.le"}  # comparisons
_LOOKUPS = {"aten.embedding", "aten.index", "aten.index_select", "aten.gather", "aten.one_hot"}
"""Operators that take positions as indices: a table ends, and a session may be longer."""
Positions = tuple[int, bool]
"""The number n of positions n, n + 1, n + 2, ..., and whether they continue those of the chunk before."""


class NotChunkable(Exception):
    """A model that runs over whole sequences only; the message names the line that needs all timesteps."""


class CountsTimesteps(NotChunkable):
    """A model that may run in chunks if its positions continue those of the chunk before."""


def timesteps_before(exported: ExportedProgram, inputs: Sequence[TensorSpec]) -> Node | None:
    """Return the input with the number of timesteps before a chunk; None for a program without one."""
    others = user_inputs(exported)[len(inputs) :]
    return others[0] if len(others) > 1 else None


def find_carried_values(exported: ExportedProgram, inputs: Sequence[TensorSpec]) -> tuple[CarrySource, ...]:
    """Return the values to carry, in the order of the graph.

    Raises `NotChunkable`: names the first operator that needs timesteps of more than one chunk.
    """
    if not has_time(inputs):
        raise NotChunkable("no input has a time dimension")
    for spec in inputs:
        if spec.batch_dim is None:
            raise NotChunkable(f"input {spec.name} has no batch dimension")
    before = timesteps_before(exported, inputs)
    walk = _Walk(TaintMap(symbolic_sizes(exported, inputs), user_inputs(exported)[-1]), before)
    for node in exported.graph.nodes:
        if node.op != "output":
            walk.visit(node)
    for node in output_nodes(exported):
        if isinstance(taint := walk.taints.of[node], Tainted):
            raise NotChunkable(f"{named_at(taint.operator, taint.line)} mixes timesteps{source_suffix(taint.line)}")
        if taint == PER_TIMESTEP:
            walk.refuse_counting(node, [node])
    if not any(carry.kind in ("state", "past", "cumsum") for carry in walk.carries):
        raise NotChunkable("there is no recurrence over time")
    if before is not None:
        walk.carries.append(CarrySource("timesteps", before, 0))
    return tuple(walk.carries)


class _Walk:
    """A traversal of the graph in order, with facts about the nodes visited."""

    def __init__(self, taints: TaintMap, before: Node | None) -> None:
        self.taints, self.before = taints, before
        self.reads = PastReads(taints)
        self.carries: list[CarrySource] = []
        self.minmax_nodes: set[Node] = set()
        """Maxima and minima over time: tuples of values, which can be carried, and of indices, which cannot."""
        self.known_at_end: set[Node] = set()
        """Nodes without time whose values are known only at the end of the sequence."""
        self.from_lengths: set[Node] = {taints.lengths} if taints.lengths is not None else set()
        """Nodes computed from the lengths."""
        self.positions: dict[Node, Positions] = {}
        """Nodes with the positions of the timesteps."""
        self.counted: set[Node] = set()
        """Nodes computed from positions that continue those of the chunk before."""
        self.from_inputs: set[Node] = set()
        """Inputs with time, and nodes computed from them."""

    def visit(self, node: Node) -> None:
        for nodes in (self.from_inputs, self.counted):
            if nodes.intersection(node.all_input_nodes) and not is_number(node):
                nodes.add(node)
        if self.reads_past(node) or self.visit_scan(node):
            return
        carried = self.add_carry(node)
        self.taints.of[node] = INDEPENDENT if carried else transfer(self.taints, node)
        if node.op == "placeholder" and self.taints.of[node] == PER_TIMESTEP:
            self.from_inputs.add(node)
        if node.op != "call_function" or is_number(node):
            return
        if carried:
            self.known_at_end.add(node)
        elif self.taints.of[node] == INDEPENDENT:
            self.visit_independent(node)
        elif self.taints.of[node] == PER_TIMESTEP:
            self.check_timestep(node)

    def reads_past(self, node: Node) -> bool:
        """Whether a node reads past timesteps, or is between such a read and its end; if so, record it.

        Raises `NotChunkable`: it also needs the end of the sequence, or the number of timesteps.
        """
        if (read := self.reads.follow(node)) is None:
            return False
        if self.known_at_end.intersection(node.all_input_nodes):
            raise NotChunkable(f"{display_name(node)} needs the end of the sequence at every timestep{at_line(node)}")
        self.refuse_counting(node, node.all_input_nodes)
        time, past = read
        if past is not None:
            self.carries.append(CarrySource("past", node, 0, past))
        if time.extra_steps:
            self.reads.of[node] = time
        self.taints.of[node] = Tainted(operator_name(node), node_line(node)) if time.extra_steps else PER_TIMESTEP
        return True

    def visit_scan(self, node: Node) -> bool:
        """Whether a node is a scan, its step, or one of its results; if so, record the states of the scan.

        Raises `NotChunkable`: a step needs more than its own timestep.
        """
        if is_scan(node):
            self.check_scan(node)
            self.carries += [CarrySource("state", node, element) for element in range(len(scan_of(node).first))]
            self.taints.of[node] = PER_TIMESTEP
            return True
        if operator_name(node) != "getitem" or not is_scan(node.args[0]):
            return False
        is_state = cast(int, node.args[1]) < len(scan_of(node.all_input_nodes[0]).first)
        self.taints.of[node] = INDEPENDENT if is_state else PER_TIMESTEP
        if is_state:
            self.known_at_end.add(node)
        return True

    def check_scan(self, node: Node) -> None:
        """Check what each step of a scan takes.

        Raises `NotChunkable`: it needs the end of the sequence, or the number of timesteps, or several of them.
        """
        line, scan = at_line(node), scan_of(node)
        positions = [one for one in scan.each if self.positions.get(one) == (0, False)]
        lengths = [one for one in scan.shared if _root(one) is self.taints.lengths]
        others = {*scan.first, *scan.each, *scan.shared}.difference(positions, lengths)
        for one in others:
            if isinstance(taint := self.taints.of[one], Tainted):
                raise NotChunkable(f"{named_at(taint.operator, taint.line)} mixes timesteps{source_suffix(taint.line)}")
        if self.known_at_end & others:
            raise NotChunkable(f"a loop needs the end of the sequence at every timestep{line}")
        detects_padding = len(positions) == len(lengths) == 1 and scan.only_detects_padding(*positions, *lengths)
        self.refuse_counting(node, others, "a loop")
        if not detects_padding or any(map(self.taints.is_time_expression, others)):
            raise NotChunkable(f"a loop counts timesteps from the beginning or the end{line}")
        of, time_dims = self.taints.of, self.taints.time_dims
        are_own = all(of[each] == PER_TIMESTEP and time_dims(each) == [0] for each in scan.each)
        if not are_own or any(map(time_dims, (*scan.first, *scan.shared))):
            raise NotChunkable(f"a loop reads several timesteps at once{line}")

    def add_carry(self, node: Node) -> bool:
        """Record a node that reduces all timesteps to one value that can be carried; returns whether it does."""
        if node.op != "call_function" or not node.all_input_nodes:
            return False
        name, source = operator_name(node), node.all_input_nodes[0]
        if name == "getitem":
            return self.add_element(node, source)
        if self.taints.of[source] != PER_TIMESTEP or self.taints.time_dims(node):
            return False
        if name == "aten.gather" and is_timestep_local(self.taints, node, name):
            self.carries.append(CarrySource("last", node, 0))
        elif name in _REDUCTIONS and self.is_over_time(node, source):
            self.carries.append(CarrySource(_REDUCTIONS[name], node, 0))
        elif name in _EXTREMES and isinstance(node.meta["val"], (list, tuple)) and self.is_over_time(node, source):
            self.minmax_nodes.add(node)
        else:
            return False
        self.refuse_counting(node, [source])
        return True

    def add_element(self, node: Node, source: Node) -> bool:
        """Record an element of a maximum over time; whether it is that, or a state, recorded by its recurrence.

        Raises `NotChunkable`: the element is the index of a timestep.
        """
        name = operator_name(source)
        if name in _RECURRENCES:
            return bool(self.taints.of[source] == PER_TIMESTEP and node.args[1] != 0)
        if source not in self.minmax_nodes:
            return False
        if node.args[1] != 0:
            raise NotChunkable(f"{name} returns the index of a timestep within the sequence{at_line(node)}")
        self.carries.append(CarrySource(_EXTREMES[name], node, 0))
        return True

    def is_over_time(self, node: Node, source: Node) -> bool:
        dims, time = dims_argument(node), self.taints.time_dim_of(source)
        return dims is not None and time in dims

    def visit_independent(self, node: Node) -> None:
        """Track whether a value of the whole request depends on the lengths or on the end of the sequence.

        Raises `NotChunkable`: the value needs timesteps of more than one chunk.
        """
        name, sources = operator_name(node), node.all_input_nodes
        if name in FACTORIES or name in FILL_FACTORIES:
            return  # its tensor argument determines the dtype only
        if any(self.taints.of[source] == PER_TIMESTEP for source in sources):
            raise NotChunkable(f"{display_name(node)} needs timesteps of more than one chunk{at_line(node)}")
        for nodes in (self.known_at_end, self.from_lengths):
            if nodes.intersection(sources):
                nodes.add(node)

    def check_timestep(self, node: Node) -> None:
        """Check the inputs of a value at each timestep.

        Raises `NotChunkable`: it needs later timesteps, the end of the sequence, or the number of timesteps.
        """
        name, sources, line = operator_name(node), node.all_input_nodes, at_line(node)
        if name in _RECURRENCES:
            self.check_states(node, name)
        if self.known_at_end.intersection(sources):
            raise NotChunkable(f"{display_name(node)} needs the end of the sequence at every timestep{line}")
        if name in _RECURRENCES:
            self.refuse_counting(node, [source for source in sources if source is not node.args[1]])
            self.carries.extend(CarrySource("state", node, element) for element in range(1, 1 + _RECURRENCES[name]))
        elif name == "aten.cumsum" and self.is_over_time(node, sources[0]):
            self.refuse_counting(node, sources)
            self.carries.append(CarrySource("cumsum", node, 0))
        elif (positions := self.positions_of(node, name)) is not None:
            self.positions[node] = positions
            if positions[1]:
                self.counted.add(node)
        elif not any(self.taints.of[source] == PER_TIMESTEP for source in sources) and name not in _SAME_AT_EVERY_STEP:
            raise NotChunkable(f"{display_name(node)} counts timesteps from the beginning{line}")
        elif _keeps_elements(node):
            self.follow_counting(node)
        elif self.detects_padding(node, name):
            self.counted.discard(node)
        else:
            self.refuse_counting(node, sources)
        if len(self.taints.time_dims(node)) > 1:
            raise NotChunkable(f"{display_name(node)} compares timesteps with each other{line}")

    def positions_of(self, node: Node, name: str) -> Positions | None:
        """Return the positions that a call makes, by adding an integer or the timesteps before; None for others."""
        if name == "aten.arange":
            return 0, False
        if name != "aten.add" or argument(node, "alpha") != 1:
            return None
        number, added = node.args[0], argument(node, "other")
        if not isinstance(number, Node) or number not in self.positions:
            return None
        first, continues = self.positions[number]
        if isinstance(added, int):
            return first + added, continues
        return None if self.before is None or _root(added) is not self.before else (first, True)

    def follow_counting(self, node: Node) -> None:
        """Copy the facts about positions and lengths to a node with the same elements."""
        source = node.all_input_nodes[0]
        if source in self.positions:
            self.positions[node] = self.positions[source]
        if source in self.from_lengths:
            self.from_lengths.add(node)

    def refuse_counting(self, node: Node, sources: Iterable[Node], name: str = "") -> None:
        """Refuse uses of positions and lengths, whose values in a chunk are not those in the sequence.

        Raises `NotChunkable`: the call counts timesteps from the beginning or the end.
        Raises `CountsTimesteps`: the same, unless positions continue those of the chunk before.
        """
        is_lookup = operator_name(node) in _LOOKUPS
        message = f"{name or display_name(node)} counts timesteps from the beginning or the end{at_line(node)}"
        is_place = is_lookup and (self.counted - self.from_inputs).intersection(sources)
        if is_place or self.from_lengths.intersection(sources):
            raise NotChunkable(message)
        if any(source in self.positions and not self.positions[source][1] for source in sources):
            raise (NotChunkable if is_lookup else CountsTimesteps)(message)

    def detects_padding(self, node: Node, name: str) -> bool:
        """Whether a node compares positions with the lengths, with the same result for all real timesteps."""
        if name not in _MIRRORED:
            return False
        number, length = node.args[0], node.args[1]
        if length in self.positions:
            number, length, name = length, number, _MIRRORED[name]
        if not isinstance(number, Node) or number not in self.positions:
            return False
        first, continues = self.positions[number]
        lengths, root = self.taints.lengths, _root(length)
        if continues:  # so do the lengths that they are compared with
            is_sum = isinstance(root, Node) and operator_name(root) == "aten.add"
            root = lengths if is_sum and cast(Node, root).args == (lengths, self.before) else None
        # Counted from 1, the last timestep is the length itself.
        return root is lengths and (first == 0 or (first == 1 and name in ("aten.le", "aten.gt")))

    def check_states(self, node: Node, name: str) -> None:
        """Check that a recurrence runs forward from a state that is known at the start.

        Raises `NotChunkable`: the recurrence is bidirectional, or its initial state is known at the end only.
        """
        line = at_line(node)
        if argument(node, "bidirectional"):
            raise NotChunkable(
                f"the recurrence is bidirectional{line}: its backward direction starts at the end of the sequence"
            )
        if (self.known_at_end | self.from_lengths).intersection(node.args[2 : 2 + _RECURRENCES[name]]):
            raise NotChunkable(f"the initial state of a recurrence is known only at the end of the sequence{line}")


def _keeps_elements(node: Node) -> bool:
    """Whether every element keeps its value, `x[:, None]` included."""
    name = operator_name(node)
    return name in VALUE_PRESERVING or (name == "aten.slice" and node.args[2:] in ((), (0, sys.maxsize)))


def _root(node: object) -> object:
    """Return the node with the same elements that is no copy of another one."""
    while isinstance(node, Node) and _keeps_elements(node):
        node = node.all_input_nodes[0]
    return node
