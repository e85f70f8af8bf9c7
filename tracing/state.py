"""State between calls: inputs that the trace keeps and updates, invisible to the caller.

The state is in one buffer, shared by all buckets. Each bucket uses a view of the part it needs, and its next values are
written there. So the next call continues from it, whichever bucket it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..bucketing.padding import storage_ptr as _storage
from .export import Function

StatePreprocessor = Callable[[list[list[list[int]]], list[torch.Tensor], torch.Tensor], Sequence[torch.Tensor]]
"""Function: shapes of the states by bucket, the buffer, the bucket's index -> views of the buffer."""


def resolve_aliases(
    aliases: Mapping[Any, int] | None, func: Function, example: Sequence[torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[tuple[int, int]]]:
    """Return the buffers and parameters that become inputs, by name, and (input, output) of each state.

    A state is given by its index among the example's tensors, by that tensor itself, or by a buffer or parameter of the
    module. Buffers and parameters become inputs after those of the example.

    Raises `ValueError`: a state is none of these, or two states share an input or an output.
    """
    module = func if isinstance(func, torch.nn.Module) else torch.nn.Module()
    own = [*module.named_buffers(), *module.named_parameters()]
    held: dict[str, torch.Tensor] = {}
    pairs: list[tuple[int, int]] = []
    for state, output in (aliases or {}).items():
        index = _example_index(state, example)
        if index is None:
            name = next((name for name, tensor in own if tensor is state), None)
            if name is None:
                given = f"a tensor {list(state.shape)}" if isinstance(state, torch.Tensor) else repr(state)
                raise ValueError(
                    f"input_output_aliases: {given} is neither the index of an example's tensor (0 to "
                    f"{len(example) - 1}), nor that tensor itself, nor a buffer or parameter of the module"
                )
            index = len(example) + len(held)
            held[name] = state
        if type(output) is not int:
            raise ValueError(f"input_output_aliases: expected the index of an output, got {output!r}")
        pairs.append((index, output))
    for kind, indices in (("input", [index for index, _ in pairs]), ("output", [output for _, output in pairs])):
        if len(set(indices)) < len(indices):
            raise ValueError(f"input_output_aliases: two states share an {kind}: {pairs}")
    return held, pairs


def _example_index(state: Any, example: Sequence[torch.Tensor]) -> int | None:
    if isinstance(state, torch.Tensor):
        return next((index for index, tensor in enumerate(example) if tensor is state), None)
    return state if type(state) is int and 0 <= state < len(example) else None


def leading_view(state: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return the view of a state that a smaller bucket uses: the first part of each dimension.

    >>> leading_view(torch.arange(6).reshape(2, 3), [2, 2])
    tensor([[0, 1],
            [3, 4]])

    Raises `ValueError`: the state is smaller than the bucket.
    """
    if state.dim() != len(shape) or any(have < want for have, want in zip(state.shape, shape, strict=True)):
        raise ValueError(
            f"a state of shape {list(state.shape)} is too small for {list(shape)}: enlarge shared_state_buffer"
        )
    return state[tuple(map(slice, shape))]


@dataclass
class StateBuffer:
    """The state of a trace, shared by its buckets."""

    initial: tuple[torch.Tensor, ...]
    shapes: list[list[list[int]]]
    """Shapes of the states, by bucket."""
    preprocessor: StatePreprocessor | None = None
    current: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Restore the initial state."""
        with torch.inference_mode(False):  # later calls outside of the caller's inference mode write to it too
            self.current = [tensor.detach().clone() for tensor in self.initial]

    def views(self, bucket: int) -> list[torch.Tensor]:
        """Return the states of a bucket as views of the buffer.

        Raises `ValueError`: the preprocessor returns other shapes, or copies, so that the next state would be lost.
        """
        wanted = self.shapes[bucket]
        if self.preprocessor is None:
            return [leading_view(state, shape) for state, shape in zip(self.current, wanted, strict=True)]
        views = list(self.preprocessor(self.shapes, self.current, torch.tensor(bucket)))
        got = [list(view.shape) for view in views]
        if got != wanted:
            raise ValueError(f"shared_state_buffer_preprocessor returned {got} for bucket {bucket}, expected {wanted}")
        ours = {_storage(state) for state in self.current}
        if any(_storage(view) not in ours for view in views):
            raise ValueError(
                "shared_state_buffer_preprocessor returned a copy of the state: return views (slices, narrow, view), "
                "because the next state is written into them"
            )
        return views

    def store_next(self, views: Sequence[torch.Tensor], following: Sequence[torch.Tensor]) -> None:
        """Write the next values into the buffer."""
        # Copy before the first write: an output may be a view of another state.
        ours = {_storage(view) for view in views}
        values = [value.clone() if _storage(value) in ours else value for value in following]
        for view, value in zip(views, values, strict=True):
            view.copy_(value)

    def copy_if_state(self, output: torch.Tensor) -> torch.Tensor:
        """Copy an output that shares memory with the state, which later calls change."""
        return output.clone() if _storage(output) in {_storage(state) for state in self.current} else output
