"""Where a model can be cut into pieces of time: which values go on from one piece of a sequence to the next.

A model splits if whatever it computes at a timestep depends on that timestep, on earlier ones through a recurrence,
and on what belongs to the whole request; and if all that it makes of its timesteps together is a final state, a last
step, or a sum, maximum or minimum over time. Those are its carries. The rules that keep padding apart (`step_rules.py`)
are the rules that keep timesteps apart. Lengths may be used by each step to tell padding only: within a piece they
count its own timesteps.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ..bucketing.shapes import TensorSpec
from .errors import node_line, source_suffix
from .outputs import output_nodes, symbolic_sizes, user_inputs
from .padding_taint import transfer
from .subgraph import CASTS_LIKE
from .timestep_rules import (
    COMPARISONS,
    FACTORIES,
    FILL_FACTORIES,
    INDEPENDENT,
    PER_TIMESTEP,
    VALUE_PRESERVING,
    Tainted,
    TaintMap,
    dims_argument,
    is_timestep_local,
    operator_name,
)

CarryKind = Literal["state", "last", "sum", "max", "min"]

_RECURRENCES = {"neuron_lstm.lstm": 2, "neuron_lstm.rnn": 1}  # their number of states
_BIDIRECTIONAL = -2, -1  # its place among their arguments, from the end
_REDUCTIONS: dict[str, CarryKind] = {
    "aten.sum": "sum",
    "aten.amax": "max",
    "aten.amin": "min",
    "aten.any": "max",
    "aten.all": "min",
}
_EXTREMES: dict[str, CarryKind] = {"aten.max": "max", "aten.min": "min"}
_LAST_STEPS = {"aten.gather", "aten.index"}
_SAME_AT_EVERY_STEP = {*FACTORIES, *FILL_FACTORIES, "aten.expand", "aten.repeat"}  # what makes timesteps out of none
_MIRRORED = {"aten.lt": "aten.gt", "aten.le": "aten.ge", "aten.gt": "aten.lt", "aten.ge": "aten.le"}
_RETURNS_ITS_INPUT = {"aten.dropout", "aten.feature_dropout"}  # in eval mode, though their schemas do not say so


class NotChunkable(Exception):
    """The model runs over whole sequences only; says which line needs all of one."""


@dataclass(frozen=True)
class CarrySource:
    """A value that goes on from one piece of a sequence to the next."""

    kind: CarryKind
    """How it comes about: it is the state after the piece, or of its last step; or it adds up."""
    node: torch.fx.Node
    """The recurrence, or the node that makes one value of all timesteps."""
    element: int
    """Which of the recurrence's results: 1 for h_n, 2 for c_n; 0 for a node that has one result."""

    @property
    def name(self) -> str:
        """`lstm.h`, `lstm.c`, or the name of the node that makes one value of all timesteps."""
        if self.kind == "state":
            return f"{self.node.name}.{' hc'[self.element]}"
        return self.node.all_input_nodes[0].name if operator_name(self.node) == "getitem" else self.node.name

    def results(self) -> list[torch.fx.Node]:
        """The nodes of the graph that have this value after the last timestep."""
        if self.kind != "state":
            return [self.node]
        return [user for user in self.node.users if user.args[1] == self.element]

    @property
    def value(self) -> torch.Tensor:
        """The (fake) tensor, for its shape and dtype."""
        found: torch.Tensor = self.node.meta["val"][self.element] if self.kind == "state" else self.node.meta["val"]
        return found


def find_carried_values(
    exported: torch.export.ExportedProgram, inputs: Sequence[TensorSpec], takes_lengths: bool
) -> tuple[CarrySource, ...]:
    """Everything that must be carried, in the order of the graph.

    Raises:
        NotChunkable: names the first operator that needs more of the sequence than the piece at hand.
    """
    if not takes_lengths:
        raise NotChunkable("no input has a time dimension")
    for spec in inputs:
        if spec.batch_dim is None:
            raise NotChunkable(f"input {spec.name} has no batch dimension")
    _refuse_shared_writes(exported)
    walk = _Walk(TaintMap(symbolic_sizes(exported, inputs), user_inputs(exported)[-1]))
    for node in exported.graph.nodes:
        if node.op != "output":
            walk.visit(node)
    for node in output_nodes(exported):
        state = walk.states.of[node]
        if isinstance(state, Tainted):
            raise NotChunkable(f"{state.operator} mixes timesteps{source_suffix(state.line)}")
        if state == PER_TIMESTEP:
            walk.refuse_counting(node, [node])
    if not any(carry.kind == "state" for carry in walk.carries):
        raise NotChunkable("there is no recurrence over time")
    return tuple(walk.carries)


class _Walk:
    """The graph's nodes in order, with what is known of those seen."""

    def __init__(self, states: TaintMap) -> None:
        self.states = states
        self.carries: list[CarrySource] = []
        self.extremes: set[torch.fx.Node] = set()
        """Maxima and minima over time: tuples of values, which can be carried, and of their places, which cannot."""
        self.late: set[torch.fx.Node] = set()
        """Free nodes that are known only at the end of the sequence."""
        self.of_lengths: set[torch.fx.Node] = {states.lengths} if states.lengths is not None else set()
        """Nodes made of the lengths."""
        self.positions: dict[torch.fx.Node, int] = {}
        """Numbers of timesteps, n, n + 1, n + 2, ..., with n."""

    def visit(self, node: torch.fx.Node) -> None:
        cut = self.cut(node)
        self.states.of[node] = INDEPENDENT if cut else transfer(self.states, node)
        if node.op != "call_function" or _is_number(node):
            return
        if cut:
            self.late.add(node)
        elif self.states.of[node] == INDEPENDENT:
            self.follow_free(node)
        elif self.states.of[node] == PER_TIMESTEP:
            self.check_step(node)

    def cut(self, node: torch.fx.Node) -> bool:
        """Whether a node makes one value of all timesteps in a way that can be carried; if so, it is noted."""
        if node.op != "call_function" or not node.all_input_nodes:
            return False
        name, source = operator_name(node), node.all_input_nodes[0]
        if name == "getitem":
            return self.cut_element(node, source)
        if self.states.of[source] != PER_TIMESTEP or self.states.time_dims(node):
            return False
        if name in _LAST_STEPS and is_timestep_local(self.states, node, name):
            self.carries.append(CarrySource("last", node, 0))
        elif name in _REDUCTIONS and self.is_over_time(node, source):
            self.carries.append(CarrySource(_REDUCTIONS[name], node, 0))
        elif name in _EXTREMES and self.states.is_tuple(node) and self.is_over_time(node, source):
            self.extremes.add(node)
        else:
            return False
        self.refuse_counting(node, [source])
        return True

    def cut_element(self, node: torch.fx.Node, source: torch.fx.Node) -> bool:
        """A final state, or the values of a maximum over time."""
        name = operator_name(source)
        if name in _RECURRENCES:
            return bool(self.states.of[source] == PER_TIMESTEP and node.args[1] != 0)
        if source not in self.extremes:
            return False
        if node.args[1] != 0:
            raise NotChunkable(f"{name} gives the place of a timestep among all{source_suffix(node_line(node))}")
        self.carries.append(CarrySource(_EXTREMES[name], node, 0))
        return True

    def is_over_time(self, node: torch.fx.Node, source: torch.fx.Node) -> bool:
        dims, time = dims_argument(node), self.states.time_dim_of(source)
        return dims is not None and time in dims

    def follow_free(self, node: torch.fx.Node) -> None:
        """A value of the whole request: of its lengths, of its end, or of neither."""
        name, sources = operator_name(node), node.all_input_nodes
        if name in FACTORIES or name in FILL_FACTORIES:
            return  # what it takes tells the dtype only
        if node.target in CASTS_LIKE:
            sources = sources[:1]
        if any(self.states.of[source] == PER_TIMESTEP for source in sources):
            raise NotChunkable(
                f"{_words(node)} needs more than one piece of the sequence{source_suffix(node_line(node))}"
            )
        if self.late.intersection(sources):
            self.late.add(node)
        if self.of_lengths.intersection(sources):
            self.of_lengths.add(node)

    def check_step(self, node: torch.fx.Node) -> None:
        """What a timestep may be made of.

        Raises:
            NotChunkable: of later timesteps, of the end of the sequence, or of how many there are.
        """
        name, sources = operator_name(node), node.all_input_nodes
        line = source_suffix(node_line(node))
        if name in _RECURRENCES:
            self.check_states(node, name)
        if self.late.intersection(sources):
            raise NotChunkable(f"{_words(node)} needs the end of the sequence at every timestep{line}")
        if name in _RECURRENCES:
            self.refuse_counting(node, [source for source in sources if source is not node.args[1]])
            self.carries.extend(CarrySource("state", node, element) for element in range(1, 1 + _RECURRENCES[name]))
        elif name == "aten.cumsum":
            raise NotChunkable(f"aten.cumsum needs all timesteps before{line}")
        elif name == "aten.arange":
            self.positions[node] = _first_number(node)
        elif not any(self.states.of[source] == PER_TIMESTEP for source in sources) and name not in _SAME_AT_EVERY_STEP:
            raise NotChunkable(f"{_words(node)} counts timesteps from the beginning{line}")
        elif _only_spreads(node):
            self.follow_counting(node)
        elif not self.tells_padding(node, name):
            self.refuse_counting(node, sources)
        if len(self.states.time_dims(node)) > 1:
            raise NotChunkable(f"{_words(node)} compares timesteps with each other{line}")

    def follow_counting(self, node: torch.fx.Node) -> None:
        """A node with the elements of another: it counts what that one does."""
        source = node.all_input_nodes[0]
        if source in self.positions:
            self.positions[node] = self.positions[source]
        if source in self.of_lengths:
            self.of_lengths.add(node)

    def refuse_counting(self, node: torch.fx.Node, sources: Sequence[torch.fx.Node]) -> None:
        """Within a piece, numbers of timesteps and lengths are others than in the whole."""
        if self.of_lengths.intersection(sources) or self.positions.keys() & set(sources):
            raise NotChunkable(
                f"{_words(node)} counts timesteps from the beginning or the end{source_suffix(node_line(node))}"
            )

    def tells_padding(self, node: torch.fx.Node, name: str) -> bool:
        """Whether a node compares timesteps' numbers with the lengths, so that all real ones compare alike."""
        if name not in COMPARISONS:
            return False
        number, length = node.args[0], node.args[1]
        if length in self.positions:
            number, length, name = length, number, _MIRRORED[name]
        if not isinstance(number, torch.fx.Node) or number not in self.positions or not self.is_plain_lengths(length):
            return False
        # Counted from 1, the last timestep is the length itself.
        return self.positions[number] == 0 or name in ("aten.le", "aten.gt")

    def is_plain_lengths(self, node: object) -> bool:
        """Whether it is the lengths themselves, spread and converted."""
        while isinstance(node, torch.fx.Node) and node is not self.states.lengths:
            if not _only_spreads(node):
                return False
            node = node.all_input_nodes[0]
        return node is self.states.lengths

    def check_states(self, node: torch.fx.Node, name: str) -> None:
        """A recurrence over time begins at the beginning, with what is known there."""
        line = source_suffix(node_line(node))
        if node.args[_BIDIRECTIONAL[0] if name == "neuron_lstm.lstm" else _BIDIRECTIONAL[1]]:
            raise NotChunkable(f"the recurrence is bidirectional{line}: it needs the end of the sequence first")
        for state in node.args[2 : 2 + _RECURRENCES[name]]:
            if state in self.late or state in self.of_lengths:
                raise NotChunkable(f"the recurrence begins with what is known only at the end of the sequence{line}")


def initial_state_node(carry: CarrySource) -> torch.fx.Node:
    """What the user's model gives a recurrence to begin with."""
    state = carry.node.args[1 + carry.element]
    assert isinstance(state, torch.fx.Node)
    return state


def constant_value(node: torch.fx.Node) -> float | None:
    """The number that a tensor is filled with, where the graph shows it."""
    while operator_name(node) in {*VALUE_PRESERVING, "aten.slice", "aten.select"}:
        node = node.all_input_nodes[0]
    if operator_name(node) in ("aten.zeros", "aten.new_zeros", "aten.zeros_like"):
        return 0.0
    return None


def _first_number(node: torch.fx.Node) -> int:
    """What `arange` over timesteps begins with: 0 or 1, for it has no more elements than there are timesteps."""
    return int(len(node.args) > 1 and node.args[0] == 1)


def _only_spreads(node: torch.fx.Node) -> bool:
    """Whether every element stays as it is, `x[:, None]` included."""
    name = operator_name(node)
    return name in VALUE_PRESERVING or (name == "aten.slice" and node.args[2:] in ((), (0, sys.maxsize)))


def _is_number(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, int))


def _words(node: torch.fx.Node) -> str:
    name = operator_name(node)
    return operator_name(node.all_input_nodes[0]) if name == "getitem" else name


def _refuse_shared_writes(exported: torch.export.ExportedProgram) -> None:
    """Writing in place is as good as a new value only where nobody reads the old one later, nor a view of it."""
    order = {node: place for place, node in enumerate(exported.graph.nodes)}
    for node in exported.graph.nodes:
        for tensor in _written(node):
            owner = tensor
            while (viewed := _viewed(owner)) is not None:
                owner = viewed
            if owner.op == "placeholder" or _is_read_later(owner, node, order):
                raise NotChunkable(
                    f"{operator_name(node)} writes into a tensor that is used elsewhere{source_suffix(node_line(node))}"
                )


def _is_read_later(tensor: torch.fx.Node, write: torch.fx.Node, order: Mapping[torch.fx.Node, int]) -> bool:
    """Whether something reads a tensor after the write, other than by what the write returns."""
    return any(
        _is_read_later(user, write, order) if _viewed(user) is tensor else order[user] > order[write]
        for user in tensor.users
        if user is not write
    )


def _written(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    schema = getattr(node.target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write and position < len(node.args):
            given = node.args[position]
            if isinstance(given, torch.fx.Node):
                yield given


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node whose memory this one may share."""
    if not node.all_input_nodes:
        return None
    maker = node.all_input_nodes[0] if node.target is operator.getitem else node
    schema = getattr(maker.target, "_schema", None)
    shares = operator_name(maker) in _RETURNS_ITS_INPUT or (
        schema is not None and any(answer.alias_info is not None for answer in schema.returns)
    )
    return node.all_input_nodes[0] if shares else None
