"""Rule of the masked recurrent operators: each row runs over its own timesteps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..packing.packed_placeholder import same_size
from .sizes import SizeExpr, evaluate, is_ragged
from .value import Batch, Call, NoRule, Results, Value, reject_split_blocks


def recurrence(batch: Batch, call: Call) -> Results:
    """Run x[N, T, F] of every request as x[B * N, T, F], each row with its own length.

    The request's own call has lengths only of sequences within its timesteps: alone, all of those are real.

    Raises `NoRule`: the lengths are computed from data, or a recurrence over all timesteps runs for each timestep.
    """
    x = call.value("x")
    items, steps = x.sizes[0], x.sizes[1]
    reject_split_blocks(x, -1)
    lengths = None
    if is_ragged(steps):
        if call["lengths"] is not None:
            raise NoRule("lengths that are computed from data")
        lengths = batch.own(steps)
        if is_ragged(items):
            raise NoRule("a recurrence over all timesteps that runs for each timestep")
        if items != 1:
            lengths = lengths.repeat_interleave(int(items))
    elif call["lengths"] is not None:
        # Beyond a request's own timesteps there is anything, and an engine reads as far as a length says.
        lengths = batch.every_row(call["lengths"]).flatten(0, 1).clamp(1, int(steps))
    states = {name: _state(batch, call.value(name)) for name in ("h_0", "c_0") if name in call.arguments}
    weights = [weight.tensor for weight in call["weights"]]
    rows = batch.every_row(x)
    rows = rows.squeeze(1) if items == 1 else rows.flatten(0, 1)
    options: dict[str, Any] = {"x": rows, "lengths": lengths, "weights": weights, **states}
    may_be_empty = lengths is not None and evaluate(steps, 1) < 1  # a request of one timestep has none of `T - 1`
    y, *last = _with_empty_rows(call, options) if may_be_empty else call.run(**options)
    own = call.sizes[0]
    outputs = [y.unsqueeze(1) if own[0] == 1 else y.reshape(batch.rows, *batch.padded_sizes(own))]
    outputs += [_state_back(batch, state, call, index) for index, state in enumerate(last, 1)]
    zero = is_ragged(steps) and not is_ragged(items)
    pairs = enumerate(zip(outputs, call.sizes, strict=True))
    return tuple(Value(tensor, sizes, zero_beyond=zero and index == 0) for index, (tensor, sizes) in pairs)


def _with_empty_rows(call: Call, options: dict[str, Any]) -> Sequence[torch.Tensor]:
    """Run a recurrence of rows that may have no timestep: they get one, and keep their state."""
    lengths = options["lengths"]
    data = torch.nn.functional.pad(options["x"], (0, 0, 0, 1))
    y, *last = call.run(**{**options, "x": data, "lengths": lengths.clamp(min=1)})
    empty = (lengths == 0).reshape(1, -1, 1)
    initial = [options[name] for name in ("h_0", "c_0") if name in options]
    return y[:, :-1], *(torch.where(empty, *pair) for pair in zip(initial, last, strict=True))


def _state(batch: Batch, state: Value) -> torch.Tensor:
    """Return a state [L, N, H] of every request as [L, B * N, H]."""
    layers, items, hidden = batch.padded_sizes(state.sizes)
    if state.shared and state.sizes[1] == 1:
        return state.tensor.expand(layers, batch.rows, hidden)
    if state.shared:
        return state.tensor.unsqueeze(1).expand(layers, batch.rows, items, hidden).reshape(layers, -1, hidden)
    moved = state.tensor.movedim(0, 1)
    return moved.squeeze(2) if state.sizes[1] == 1 else moved.flatten(1, 2)


def _state_back(batch: Batch, state: torch.Tensor, call: Call, index: int) -> torch.Tensor:
    layers, items, hidden = batch.padded_sizes(call.sizes[index])
    if call.sizes[index][1] == 1:
        return state.movedim(1, 0).unsqueeze(2)
    return state.reshape(layers, batch.rows, items, hidden).movedim(1, 0)


def _with_strides_of(state: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return a state of a scan as the next step takes it: strides differ, too, where a size is 1."""
    alike = all(map(same_size, new.stride(), state.stride()))
    return new if alike else new.clone(memory_format=torch.contiguous_format)


_RunStep = Callable[[torch.fx.GraphModule, Sequence[Value], Batch], Sequence[Value]]
"""A function that runs the graph of one step on the values of a batch."""


def scan(
    batch: Batch, arguments: Sequence[Any], sizes: Sequence[Sequence[SizeExpr]], run_step: _RunStep
) -> tuple[Value, ...]:
    """Run a scan of every request, each over its own number of steps.

    Raises `NoRule`: the number of steps is constant, or may be 0, or a step reads several timesteps.
    """
    graph, first, each, shared = arguments
    steps = each[0].sizes[0]
    fewest = evaluate(steps, 1)
    if not is_ragged(steps) or fewest < 0:
        raise NoRule("a loop whose number of steps is constant, or may be less than 0")
    own_sizes = [value.sizes for value in (*first, *shared)] + [value.sizes[1:] for value in each]
    if any(is_ragged(size) for own in own_sizes for size in own):
        raise NoRule("a step of a loop that reads several timesteps")
    tensors = [batch.every_row(value).movedim(1, 0) for value in each]
    common = [value.tensor for value in shared]
    positions, ends = batch.positions(steps), batch.own(steps)
    count, padded = len(first), positions.shape[0]
    if fewest == 0:  # torch refuses a scan of no steps: one more is run, which is beyond the end of every row
        tensors = [torch.cat([tensor, tensor.new_zeros(1, *tensor.shape[1:])]) for tensor in tensors]
        positions = torch.arange(padded + 1)

    def step(*given: torch.Tensor) -> list[torch.Tensor]:
        *rest, lengths = given
        states, now = rest[: len(first)], rest[len(first) : len(first) + len(each)]
        position, others = rest[len(first) + len(each)], rest[len(first) + len(each) + 1 :]
        values = [Value(tensor, value.sizes) for tensor, value in zip(states, first, strict=True)]
        values += [Value(tensor, value.sizes[1:]) for tensor, value in zip(now, each, strict=True)]
        values += [Value(t, v.sizes, v.shared) for t, v in zip(others, shared, strict=True)]
        rows = Batch(lengths.shape[0], 1, lengths)
        results = [rows.every_row(value) for value in run_step(graph, values, rows)]
        live = position < lengths
        kept = [
            torch.where(live.reshape(-1, *[1] * (old.dim() - 1)), _with_strides_of(old, new), old)
            for new, old in zip(results, states, strict=False)
        ]
        return [*kept, *(result.clone() for result in results[len(states) :])]

    initial = [batch.every_row(value).clone(memory_format=torch.contiguous_format) for value in first]
    results = torch.ops.higher_order.scan(step, initial, [*tensors, positions], (*common, ends))
    ended = [*results[:count], *(tensor.narrow(0, 0, padded).movedim(0, 1) for tensor in results[count:])]
    return tuple(Value(tensor, tuple(own)) for tensor, own in zip(ended, sizes, strict=True))
