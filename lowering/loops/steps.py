"""Recurrences that are no standard cell, as a scan: one step is a function of tensors."""

from __future__ import annotations

import graphlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import UnknownLoop, at_line
from ..packing.packed_placeholder import same_size
from ..packing.packed_rules import masked_recurrence
from .recipe import Count, Listed, Member, Operand, Run, Stacked, Starting, Unit, operands_of, sources_of

_Key = int | tuple[str, int]


@dataclass(frozen=True)
class _Read:
    """Value that a call reads: the result of a call of the same step by its unit, or a tensor by its list and place."""

    key: _Key


@dataclass
class _Inputs:
    """Tensors that a step takes: carried from one step to the next, one for each timestep, and shared."""

    carried: list[tuple[Operand, int]] = field(default_factory=list)
    each: list[torch.Tensor] = field(default_factory=list)
    shared: list[torch.Tensor] = field(default_factory=list)

    def keep(self, value: Any) -> Any:
        """Return an argument with its tensors replaced by places in the lists."""
        if isinstance(value, Stacked):
            return _Read(("each", _place(self.each, value.tensor)))
        if isinstance(value, torch.Tensor):
            return _Read(("shared", _place(self.shared, value)))
        return value

    def state(self, state: Starting, unit: int) -> _Read:
        """Return the place of a state that is carried from the step before."""
        carried = (state.first, unit)
        if carried not in self.carried:
            self.carried.append(carried)
        return _Read(("carried", self.carried.index(carried)))


def _place(tensors: list[torch.Tensor], tensor: torch.Tensor) -> int:
    """Return the place of a tensor in a list, which has it once: `scan` refuses a tensor given twice."""
    for place, other in enumerate(tensors):
        if other is tensor:
            return place
    tensors.append(tensor)
    return len(tensors) - 1


class Steps:
    """The calls of one step of a recurrence; `outside` evaluates an argument that is no part of it, for all steps."""

    def __init__(self, units: Mapping[int, Unit], outside: Callable[[Operand | Run, Unit], Any]) -> None:
        """Prepare the calls in an order in which each has its arguments.

        Raises `UnknownLoop`: a call reads an earlier step than the one before.
        """
        self._own, self._outside, self._inputs = set(units), outside, _Inputs()
        self._calls = [(index, units[index].target, *self._arguments(units[index])) for index in self._order(units)]

    def _order(self, units: Mapping[int, Unit]) -> list[int]:
        same_step: dict[int, set[int]] = {}
        for index, unit in units.items():
            operands = operands_of((*unit.args, *unit.kwargs.values()))
            same_step[index] = {i for i in self._own & sources_of(unit) if Member(i, Count(0), 1) in operands}
        return list(graphlib.TopologicalSorter(same_step).static_order())

    def _arguments(self, unit: Unit) -> tuple[list[Any], dict[str, Any]]:
        args = [self._argument(operand, unit) for operand in unit.args]
        return args, {name: self._argument(operand, unit) for name, operand in unit.kwargs.items()}

    def _argument(self, operand: Operand | Run, unit: Unit) -> Any:
        match operand:
            case Member(index, Count(0, 0, 0), 1) if index in self._own:
                return _Read(index)
            case Starting(_, Member(index, Count(-1, 0, 0), 1)) if index in self._own:
                return self._inputs.state(operand, index)
            case Listed(items):
                return [self._argument(item, unit) for item in items]
            case Member(index) | Run(index) | Starting(_, Member(index)) if index in self._own:
                raise UnknownLoop(f"a loop reads another timestep than the one before{at_line(unit.node)}")
        return self._inputs.keep(self._outside(operand, unit))

    def run(
        self, initial: Callable[[Operand], torch.Tensor], steps: Any, seen: Mapping[int, Any]
    ) -> tuple[dict[int, Any], dict[int, torch.Tensor]]:
        """Run all steps; the values of units in `seen`, [steps, ...], and the carried states after the last step."""
        inputs = self._inputs
        first = [_dense(initial(operand)) for operand, _ in inputs.carried]
        each = inputs.each or [torch.arange(steps)]
        structure: dict[int, pytree.TreeSpec] = {}
        lists = {"carried": first, "each": each, "shared": inputs.shared}
        keys: list[_Key] = [(kind, place) for kind, tensors in lists.items() for place in range(len(tensors))]

        def step(*tensors: torch.Tensor) -> list[torch.Tensor]:
            values = self._step(dict(zip(keys, tensors, strict=True)))
            results = [_dense(values[unit]) for _, unit in inputs.carried]
            for unit in seen:
                leaves, structure[unit] = pytree.tree_flatten(values[unit])
                results += [leaf.clone() for leaf in leaves]
            return results

        results = list(torch.ops.higher_order.scan(step, first, each, tuple(inputs.shared)))
        units = [unit for _, unit in inputs.carried]
        final = {unit: state for unit, state in zip(units, results, strict=False) if units.count(unit) == 1}
        del results[: len(first)]
        values = {}
        for unit, own_steps in seen.items():
            count = structure[unit].num_leaves
            leaves = [leaf if same_size(own_steps, steps) else leaf.narrow(0, 0, own_steps) for leaf in results[:count]]
            values[unit] = pytree.tree_unflatten(leaves, structure[unit])
            del results[:count]
        return values, final

    def _step(self, values: dict[_Key, Any]) -> dict[_Key, Any]:
        """Add the results of the calls to the tensors that the step takes."""

        def filled(argument: Any) -> Any:
            if isinstance(argument, list):
                return [filled(item) for item in argument]
            return values[argument.key] if isinstance(argument, _Read) else argument

        for index, target, args, kwargs in self._calls:
            arguments = [filled(argument) for argument in args]
            if target in CELLS:
                values[index] = _cell_step(CELLS[target], *arguments)
            elif target is operator.getitem:
                values[index] = arguments[0][arguments[1]]
            else:
                values[index] = target(*arguments, **{name: filled(value) for name, value in kwargs.items()})
        return values


def _dense(state: torch.Tensor) -> torch.Tensor:
    """Copy a state: a scan takes states of the same strides from each step to the next."""
    return state.clone(memory_format=torch.contiguous_format)


_aten = torch.ops.aten
CELLS = {getattr(_aten, f"{cell}_cell").default: cell for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


def run_cell(
    cell: str, x: torch.Tensor, initial: Sequence[torch.Tensor], weights: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Run a cell over x[T, N, F] from states [N, H].

    Returns the states of every timestep [T, N, H], and the last ones [N, H].
    `weights` are those of nn.LSTMCell, nn.GRUCell or nn.RNNCell in their order; biases may be None.
    """
    given = [weight for weight in weights if weight is not None]
    states = [state.unsqueeze(0) for state in initial]
    state = tuple(states) if cell == "lstm" else states[0]
    y, *last = masked_recurrence(cell, x.transpose(0, 1), None, state, given, len(given) > 2, 1, False)
    return y.transpose(0, 1), tuple(state.squeeze(0) for state in last)


def _cell_step(cell: str, x: torch.Tensor, state: Any, *weights: torch.Tensor | None) -> Any:
    """Compute one step of a cell: x[N, F] with states [N, H]; (h, c) of an LSTM, and h of others."""
    w_ih, w_hh, b_ih, b_hh = (*weights, None, None)[:4]
    h = state[0] if cell == "lstm" else state
    own, carried = _aten.linear(x, w_ih, b_ih), _aten.linear(h, w_hh, b_hh)
    if cell == "lstm":
        i, f, g, o = (own + carried).chunk(4, 1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    if cell == "gru":
        (r, z, n), (r_h, z_h, n_h) = own.chunk(3, 1), carried.chunk(3, 1)
        new = torch.tanh(n + torch.sigmoid(r + r_h) * n_h)
        update = torch.sigmoid(z + z_h)
        return new + update * (h - new)
    return torch.tanh(own + carried) if cell == "rnn_tanh" else torch.relu(own + carried)


STEPS = {operator: partial(_cell_step, cell) for operator, cell in CELLS.items()}
"""Cells in operators on rows, for those that no loop over timesteps calls."""
