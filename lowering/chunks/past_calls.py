"""Calls in a chunk program that read past timesteps: the carried ones take the place of the constants."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node, map_arg

from ..exporter.subgraph import SubgraphBuilder
from ..graph_calls import argument, rank
from .past_timesteps import PastTimesteps, sizes_of

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
        source = copies(self.past.source)
        self.extended = self.builder.call(_aten.cat.default, [self.carried, source], self.past.dim)
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
        padding = sizes_of(call, "padding", spatial)
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
