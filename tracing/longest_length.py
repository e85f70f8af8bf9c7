"""Traces of models that answer by the longest sequence of a call, as `pad_packed_sequence(...).mean(1)` does.

Without `total_length`, `pad_packed_sequence` returns as many timesteps as the longest sequence has, and a trace always
those of its example. Where the outputs depend on that number, the longest sequence of each call must have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..backends.signature import WrongInput
from ..lowering.errors import LoweringError
from ..lowering.exporter.random_values import is_close

_CONVERSIONS = ("to", "_to_copy", "clone", "alias", "detach", "contiguous")
_WAY_OUT = "pass total_length=x.size(1) to pad_packed_sequence(), so that the outputs do not depend on it"


@dataclass(frozen=True)
class LongestLength:
    """The number of timesteps that the longest sequence of a call must have."""

    index: int
    """Index of the lengths, int[B], among the tensors of a call."""
    timesteps: int

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise `WrongInput` if the longest sequence has another number of timesteps."""
        longest = int(tensors[self.index].max())
        if longest != self.timesteps:
            raise WrongInput(
                f"the longest sequence has {longest} timesteps, but the outputs of this trace are those of eager mode "
                f"only if it has the {self.timesteps} of the example: {_WAY_OUT}"
            )


def required_longest(
    program: torch.export.ExportedProgram,
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    in_tree: pytree.TreeSpec,
    padded_timesteps: int,
) -> LongestLength | None:
    """Return the length that the longest sequence must have; None if the outputs do not depend on it.

    `tensors` are those of the example, with the held ones after those of `in_tree`.

    Raises `LoweringError`: the lengths are computed, so that no call can be checked.
    """
    index = _lengths_index(program)
    count = in_tree.num_leaves
    if index is None or index >= count:
        raise LoweringError(f"the model computes the lengths of a packed sequence: {_WAY_OUT}")
    run = program.module()
    with torch.no_grad():
        for longest in sorted({1, padded_timesteps // 2, padded_timesteps - 1} - {0, padded_timesteps}):
            lengths = tensors[index].clamp(max=longest)
            for sign in (1, -1):  # zeros of padding are the largest numbers beside negative ones
                inputs = [_drawn(tensor, sign) if i != index else lengths for i, tensor in enumerate(tensors[:count])]
                try:
                    theirs = pytree.tree_leaves(function(*pytree.tree_unflatten(inputs, in_tree)))
                except Exception:  # noqa: BLE001 - the model takes no shorter sequences
                    return LongestLength(index, padded_timesteps)
                if not all(map(_begins_with, run(*inputs, *tensors[count:]), theirs)):
                    return LongestLength(index, padded_timesteps)
    return None


def _lengths_index(program: torch.export.ExportedProgram) -> int | None:
    """Return the index of the input that holds the lengths of a recurrence; None if they are computed."""
    inputs = list(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if str(node.target).startswith("neuron_lstm") and node.args[1] is not None:
            lengths = node.args[1]
            while lengths.op == "call_function" and str(lengths.target).split(".")[1] in _CONVERSIONS:
                lengths = lengths.args[0]
            return inputs.index(lengths.name) if lengths.name in inputs else None
    return None


def _drawn(tensor: torch.Tensor, sign: int) -> torch.Tensor:
    return sign * torch.rand_like(tensor) if tensor.is_floating_point() else tensor.clone()


def _begins_with(ours: torch.Tensor, theirs: Any) -> bool:
    """Whether the outputs are equal in the timesteps that eager mode returns."""
    fits = ours.dim() == theirs.dim() and all(a >= b for a, b in zip(ours.shape, theirs.shape, strict=True))
    return fits and is_close(ours[tuple(map(slice, theirs.shape))], theirs)
