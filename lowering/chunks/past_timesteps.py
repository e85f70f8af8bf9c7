"""Analysis of operators that read past timesteps: causal convolutions, and shifts by some timesteps.

A causal convolution is written as padding before the first timestep and a convolution without padding, or as a
convolution with padding on both sides and a cut of its end. A shift is written as padding and a cut, or as a
concatenation. In between, tensors have more timesteps than the request: `extra` more, and the position j depends on
the timesteps up to j - `lag`. A tensor of the request's timesteps with a lag of 0 or more depends on no later timestep.

So a chunk needs the timesteps before its first one: as many as the padding has. These are carried from chunk to chunk.
In the call of a chunk program, they take the place of the constants.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.fx import Node, map_arg

from ..exported_graph import argument, axis_of, each_dim, operator_name, rank, rule_table
from ..exporter.subgraph import SubgraphBuilder
from ..ragged.sizes import expression
from .timestep_rules import INDEPENDENT, PER_TIMESTEP, TaintMap, constant_value, transfer


@dataclass(frozen=True)
class TimeOffset:
    """The time dimension of a tensor that has more timesteps than the request, or reads other ones."""

    dim: int
    extra_steps: int
    """Timesteps more than the request has."""
    delay: int
    """The position j depends on the timesteps up to j - delay."""


@dataclass(frozen=True)
class PastTimesteps:
    """The last timesteps of a tensor, which a call in the next chunk reads before that chunk's own."""

    form: Literal["pad", "convolution", "transposed", "concatenation"]
    """The form of the call that puts other values in place of the timesteps before the first one."""
    call: Node
    source: Node
    """The tensor, with the request's timesteps in the dimension `dim`."""
    dim: int
    steps: int
    fill: float | None
    """The number in their place; None: they are computed, as from a parameter."""

    @property
    def first(self) -> Node:
        """The tensor of the computed values before the first timestep."""
        first: Node = argument(self.call, "tensors")[0]
        return first

    @property
    def value(self) -> torch.Tensor:
        """The fake tensor of these timesteps."""
        fake: torch.Tensor = self.source.meta["val"]
        return fake.new_empty([self.steps if dim == self.dim else size for dim, size in enumerate(fake.shape)])


Read = tuple[TimeOffset, PastTimesteps | None]
"""The time dimension of a call's result, and the timesteps that it needs from before a chunk."""


class PastReads:
    """The extended tensors among the nodes visited so far."""

    def __init__(self, taints: TaintMap) -> None:
        self.taints = taints
        self.of: dict[Node, TimeOffset] = {}

    def follow(self, node: Node) -> Read | None:
        """Return what a call reads; None if that is its own timestep alone or later ones, or if it has no rule here."""
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            return None
        name = operator_name(node)
        rule = _RULES.get(name)
        read = (None if rule is None else rule(self, node)) or self.local(node)
        if read is None or read[0].delay < 0 or (read[1] is not None and node.kwargs):
            return None  # the call that takes the place of a read has positional arguments only
        is_new = read[1] is not None or name in _CONVOLUTIONS or (rule is _cut and _is_whole(node, read[0]))
        return read if is_new or self.of.keys() & set(node.all_input_nodes) else None

    def extended(self, node: object) -> TimeOffset | None:
        """Return the time dimension of a tensor whose values are known up to each timestep."""
        if not isinstance(node, Node):
            return None
        if node in self.of:
            return self.of[node]
        time = self.taints.time_dim_of(node)
        is_plain = time is not None and self.taints.of.get(node) == PER_TIMESTEP
        return TimeOffset(time, 0, 0) if is_plain and time is not None else None

    def extra_steps(self, size: object) -> int | None:
        """Return by how many a size exceeds the request's timesteps; None if that is no number."""
        axes = self.taints.axes
        if not isinstance(size, torch.SymInt) or axis_of(size, axes) == "batch":
            return None
        difference = expression(size) - expression(axes["time"])
        return int(difference) if difference.is_Integer else None

    def local(self, node: Node) -> Read | None:
        """Return the time dimension of a call that takes extended tensors and keeps their timesteps apart."""
        known = [(source, self.of[source]) for source in node.all_input_nodes if source in self.of]
        before = {source: self.taints.of[source] for source in node.all_input_nodes}
        if not known or PER_TIMESTEP in before.values() or operator_name(node) == "aten.cumsum":
            return None
        first, time = known[0]
        taints = TaintMap({**self.taints.axes, "time": first.meta["val"].shape[time.dim]}, self.taints.lengths)
        alike = dict.fromkeys([source for source, own in known if own.extra_steps == time.extra_steps], PER_TIMESTEP)
        taints.of.update({**before, **alike})
        dim = taints.time_dim_of(node) if transfer(taints, node) == PER_TIMESTEP else None
        return None if dim is None else (replace(time, dim=dim, delay=min(own.delay for _, own in known)), None)

    def is_constant(self, node: object) -> bool:
        """Whether an argument is no tensor, or one that depends on no timestep."""
        return not isinstance(node, Node) or self.taints.of.get(node) == INDEPENDENT


def _pad(reads: PastReads, node: Node) -> Read | None:
    """Constants before the first timestep."""
    source, sizes = argument(node, "self"), list(argument(node, "pad"))
    time = reads.extended(source) or _cut_end(reads, source)
    if time is None or argument(node, "mode", "constant") != "constant":
        return None
    place = 2 * (rank(source) - 1 - time.dim)
    before, after = (sizes[place], sizes[place + 1]) if place < len(sizes) else (0, 0)
    if not all(isinstance(size, int) and size >= 0 for size in (before, after)):
        return None
    result = TimeOffset(time.dim, time.extra_steps + before + after, time.delay + before)
    if time.extra_steps > 0:  # the constants are not before the first timestep
        return (result, None) if before == after == 0 else None
    if time.extra_steps < 0:
        if result.extra_steps or after:
            return None
        source = argument(source, "self")
    fill = float(argument(node, "value") or 0.0)
    past = PastTimesteps("pad", node, source, time.dim, before, fill)
    return result, past if before else None


def _convolution(reads: PastReads, node: Node) -> Read | None:
    """A window over timesteps, with zeros on both sides of them or none."""
    if (window := _window(reads, node)) is None:
        return None
    time, span, zeros = window
    if zeros and time.extra_steps:
        return None
    result = TimeOffset(time.dim, time.extra_steps + 2 * zeros - span, time.delay + zeros - span)
    if result.extra_steps < 0:
        return None
    return result, PastTimesteps("convolution", node, argument(node, "input"), time.dim, zeros, 0.0) if zeros else None


def _transposed(reads: PastReads, node: Node) -> Read | None:
    """Windows that are added where they overlap: each timestep is in as many as the window is long."""
    window = _window(reads, node)
    if window is None or window[0].extra_steps or any(argument(node, "output_padding")):
        return None
    time, span, cut = window
    result = TimeOffset(time.dim, span - 2 * cut, time.delay - cut)
    if result.extra_steps < 0:
        return None
    return result, PastTimesteps("transposed", node, argument(node, "input"), time.dim, span, 0.0) if span else None


def _window(reads: PastReads, node: Node) -> tuple[TimeOffset, int, int] | None:
    """Return the time, the steps from first to last, and the padding of a window that moves by one step; else None."""
    source, weight, bias = (argument(node, name) for name in ("input", "weight", "bias"))
    time = reads.extended(source)
    if time is None or not reads.is_constant(weight) or not reads.is_constant(bias):
        return None
    spatial = rank(weight) - 2
    place = time.dim - (rank(source) - spatial)
    if place < 0 or isinstance(argument(node, "padding"), str):
        return None
    names = ("stride", "dilation", "padding")
    stride, dilation, padding = (each_dim(argument(node, name), spatial)[place] for name in names)
    span = dilation * (int(weight.meta["val"].shape[2 + place]) - 1)
    return (time, span, padding) if stride == 1 else None


def _cut(reads: PastReads, node: Node) -> Read | None:
    """Some of the timesteps, one after the other."""
    time = _part(reads, node)
    return None if time is None or time.extra_steps < 0 else (time, None)


def _part(reads: PastReads, node: Node) -> TimeOffset | None:
    """Return the time dimension of a cut, which may have fewer timesteps than the request."""
    time = reads.extended(argument(node, "self"))
    if time is None or argument(node, "step", 1) != 1 or int(argument(node, "dim")) % rank(node) != time.dim:
        return None
    start, extra = argument(node, "start") or 0, reads.extra_steps(node.meta["val"].shape[time.dim])
    if not isinstance(start, int) or start < 0 or extra is None:
        return None
    return TimeOffset(time.dim, extra, time.delay - start)


def _is_whole(node: Node, time: TimeOffset) -> bool:
    """Whether a cut to the request's number of timesteps leaves none out."""
    end = argument(node, "length" if operator_name(node) == "aten.narrow" else "end")
    is_along_time = int(argument(node, "dim")) % rank(node) == time.dim
    return isinstance(end, Node) and is_along_time and (time.extra_steps, time.delay) == (0, 0)


def _concatenation(reads: PastReads, node: Node) -> Read | None:
    """Values without time before the first timestep; the last timesteps may be left out."""
    tensors, dim = argument(node, "tensors"), int(argument(node, "dim")) % rank(node)
    if len(tensors) != 2:
        return None
    first, source = tensors
    steps, fill = first.meta["val"].shape[dim], constant_value(first)
    if fill is None and not reads.is_constant(first):
        return None
    time = reads.extended(source) or _cut_end(reads, source)
    if not isinstance(steps, int) or time is None or time.dim != dim or time.extra_steps not in (0, -steps):
        return None
    source = source if time.extra_steps == 0 else argument(source, "self")
    past = PastTimesteps("concatenation", node, source, dim, steps, fill)
    return TimeOffset(dim, time.extra_steps + steps, time.delay + steps), past


def _cut_end(reads: PastReads, node: Node) -> TimeOffset | None:
    """Return the time dimension of a tensor without its last timesteps: it has fewer than the request."""
    if operator_name(node) not in ("aten.narrow", "aten.slice") or argument(node, "self") in reads.of:
        return None
    time = _part(reads, node)
    return time if time is not None and time.extra_steps < 0 <= time.delay else None


_CONVOLUTIONS = {f"aten.{kind}{spatial}d" for kind in ("conv", "conv_transpose") for spatial in (1, 2, 3)}
Rule = Callable[[PastReads, Node], Read | None]
_RULES: dict[str, Rule] = rule_table(
    (_pad, "pad constant_pad_nd"),
    (_convolution, "conv1d conv2d conv3d"),
    (_transposed, "conv_transpose1d conv_transpose2d conv_transpose3d"),
    (_cut, "narrow slice"),
    (_concatenation, "cat"),
)


_aten = torch.ops.aten
Copies = Callable[[Node], Node]


@dataclass
class PastCall:
    """One call of the chunk program in place of `past.call`."""

    builder: SubgraphBuilder
    past: PastTimesteps
    carried: Node
    """The timesteps before the chunk, in the model's layout."""
    extended: Node | None = None
    """These and the chunk's own, once the call is made."""

    def replace(self) -> None:
        """Let the builder make this call, when it comes to the one of the model."""
        # the padded tensor may be a part of the source; a concatenation has no other tensors than that and constants
        call, form = self.past.call, self.past.form
        others = [node for node in call.all_input_nodes if form != "concatenation" and node is not call.args[0]]
        self.builder.replace_call(call, [self.past.source, *others], self._make)

    def last_timesteps(self, rows: int) -> Node:
        """Return the last timesteps of each row, which the next chunk reads; `rows` is the dimension of the batch."""
        past, call = self.past, self.builder.call
        assert self.extended is not None
        # a row ends in its own last timestep, and `steps` others are before its first one
        positions = call(_aten.unsqueeze.default, self.builder.lengths, 1)
        positions = call(_aten.add.Tensor, positions, call(_aten.arange.default, past.steps))
        return timesteps_of_rows(self.builder, self.extended, positions, past.value.shape, past.dim, rows)

    def _make(self, copies: Copies) -> Node:
        self.extended = self.builder.call(_aten.cat.default, [self.carried, copies(self.past.source)], self.past.dim)
        return _MAKERS[self.past.form](self, copies, self.extended)

    def _pad(self, copies: Copies, extended: Node) -> Node:
        call, sizes = self.past.call, list(argument(self.past.call, "pad"))
        sizes[self._place_in_pad] = 0
        arguments = replaced_arguments(call, copies, {0: self._concatenation(copies, extended), 1: sizes})
        return self.builder.call(call.target, *arguments)  # type: ignore[arg-type]  # an operator

    def _convolution(self, copies: Copies, extended: Node) -> Node:
        """The zeros before the first timestep are carried, those after the last are added here."""
        after = [0] * (self._place_in_pad + 1) + [self.past.steps]
        whole = self.builder.call(_aten.constant_pad_nd.default, extended, after, 0.0)
        return self._without_padding(copies, whole)[0]

    def _transposed(self, copies: Copies, extended: Node) -> Node:
        """The windows of the timesteps before the chunk reach into it; what is before the chunk is cut."""
        past, call = self.past, self.builder.call
        added, cut = self._without_padding(copies, extended)
        size = call(_aten.sym_size.int, copies(past.source), past.dim)
        extra = past.steps - 2 * cut
        return call(_aten.narrow.default, added, past.dim, past.steps + cut, call(operator.add, size, extra))

    def _without_padding(self, copies: Copies, whole: Node) -> tuple[Node, int]:
        """Return the convolution of a tensor without padding along time, and that padding."""
        call = self.past.call
        spatial = rank(argument(call, "weight")) - 2
        place = self.past.dim - (rank(self.past.source) - spatial)
        padding = each_dim(argument(call, "padding"), spatial)
        before, padding[place] = padding[place], 0
        arguments = replaced_arguments(call, copies, {0: whole})
        if len(arguments) > _PADDING:
            arguments[_PADDING] = padding
        return self.builder.call(call.target, *arguments), before  # type: ignore[arg-type]  # an operator

    def _concatenation(self, copies: Copies, extended: Node) -> Node:
        """The last timesteps are left out where the model leaves them out."""
        source, dim = self.past.source, self.past.dim
        if self.past.call.meta["val"].shape[dim] != source.meta["val"].shape[dim]:
            return extended
        size = self.builder.call(_aten.sym_size.int, copies(source), dim)
        return self.builder.call(_aten.narrow.default, extended, dim, 0, size)

    @property
    def _place_in_pad(self) -> int:
        """The position of the timesteps before the first one in the sizes of `aten.pad`."""
        return 2 * (rank(self.past.source) - 1 - self.past.dim)


def timesteps_of_rows(
    builder: SubgraphBuilder, tensor: Node, positions: Node, shape: Sequence[int | torch.SymInt], time: int, rows: int
) -> Node:
    """Return timesteps of each row, at positions[B, n], in a shape: `time` is its dimension of n, `rows` that of B."""
    index = positions if rows < time else builder.call(_aten.transpose.int, positions, 0, 1)
    sizes = []
    for dim, size in enumerate(shape):
        is_indexed = dim in (rows, time)
        index = index if is_indexed else builder.call(_aten.unsqueeze.default, index, dim)
        sizes.append(-1 if is_indexed else int(size))
    return builder.call(_aten.gather.default, tensor, time, builder.call(_aten.expand.default, index, sizes))


_PADDING = 4
"""The position of the padding among the arguments of a convolution, also of a transposed one."""
_MAKERS = {
    "pad": PastCall._pad,
    "convolution": PastCall._convolution,
    "transposed": PastCall._transposed,
    "concatenation": PastCall._concatenation,
}


def replaced_arguments(call: Node, copies: Copies, given: dict[int, object]) -> list[object]:
    """Return the arguments of a call as copies, some of them replaced."""
    kept = [None if position in given else value for position, value in enumerate(call.args)]
    copied = list(map_arg(tuple(kept), copies))
    return [given.get(position, value) for position, value in enumerate(copied)]
