"""Rule of `scan`: each row keeps its state after its own last step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .sizes import SizeExpr, evaluate, is_ragged
from .value import Batch, NoRule, Value

RunStep = Callable[[torch.fx.GraphModule, Sequence[Value], Batch], Sequence[Value]]
"""A function that runs the graph of one step on the values of a batch."""


def scan(
    batch: Batch, arguments: Sequence[Any], sizes: Sequence[Sequence[SizeExpr]], run_step: RunStep
) -> tuple[Value, ...]:
    """Run a scan of every request, each over its own number of steps.

    Raises:
        NoRule: the number of steps is constant, or may be 0, or a step reads several timesteps.
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
            torch.where(live.reshape(-1, *[1] * (old.dim() - 1)), new, old)
            for new, old in zip(results, states, strict=False)
        ]
        return [*kept, *(result.clone() for result in results[len(states) :])]

    initial = [batch.every_row(value).clone() for value in first]
    results = torch.ops.higher_order.scan(step, initial, [*tensors, positions], (*common, ends))
    return tuple(
        Value(tensor if place < count else tensor.narrow(0, 0, padded).movedim(0, 1), tuple(sizes[place]))
        for place, tensor in enumerate(results)
    )
