"""State between calls: inputs that the caller does not give, and whose next values it does not get.

The state lies in one buffer, shared by all buckets: each takes the part it needs as a view and its next values are
written there, so that whichever bucket comes next goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .export import Function

StatePreprocessor = Callable[[list[list[list[int]]], list[torch.Tensor], torch.Tensor], Sequence[torch.Tensor]]
"""Shapes of the states by bucket, the buffer, the bucket's index -> views of the buffer in that bucket's shapes."""


def resolve_aliases(
    aliases: Mapping[Any, int] | None, func: Function, example: Sequence[torch.Tensor]
) -> tuple[list[str], list[tuple[int, int]]]:
    """Buffers and parameters of a module that become inputs, and each state's (input, output).

    A state is named by its place among the example's tensors, by that tensor itself, or by a buffer or parameter of the
    module. Held ones are inputs behind the example's.

    Raises:
        ValueError: a state is none of these, or two share an output.
    """
    module = func if isinstance(func, torch.nn.Module) else torch.nn.Module()
    own = [*module.named_buffers(), *module.named_parameters()]
    held: list[str] = []
    pairs: list[tuple[int, int]] = []
    for state, output in (aliases or {}).items():
        place = _place(state, example)
        if place is None:
            name = next((name for name, tensor in own if tensor is state), None)
            if name is None:
                raise ValueError(
                    f"input_output_aliases: {_describe(state)} is neither the place of an example's tensor (0 to "
                    f"{len(example) - 1}), nor that tensor itself, nor a buffer or parameter of the module"
                )
            place = len(example) + len(held)
            held.append(name)
        if type(output) is not int:
            raise ValueError(f"input_output_aliases: expected the place of an output, got {output!r}")
        pairs.append((place, output))
    for what, places in (("input", [place for place, _ in pairs]), ("output", [output for _, output in pairs])):
        if len(set(places)) < len(places):
            raise ValueError(f"input_output_aliases: two states share an {what}: {pairs}")
    return held, pairs


def _place(state: Any, example: Sequence[torch.Tensor]) -> int | None:
    if isinstance(state, torch.Tensor):
        return next((index for index, tensor in enumerate(example) if tensor is state), None)
    return state if type(state) is int and 0 <= state < len(example) else None


def _describe(state: Any) -> str:
    return f"a tensor {list(state.shape)}" if isinstance(state, torch.Tensor) else repr(state)


def leading_view(state: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The view of a state that a smaller bucket takes: the first of each dimension.

    >>> leading_view(torch.arange(6).reshape(2, 3), [2, 2])
    tensor([[0, 1],
            [3, 4]])

    Raises:
        ValueError: the state is smaller than the bucket.
    """
    if state.dim() != len(shape) or any(have < want for have, want in zip(state.shape, shape, strict=True)):
        raise ValueError(
            f"a state of {list(state.shape)} has no part of {list(shape)}: make shared_state_buffer larger"
        )
    for dim, size in enumerate(shape):
        state = state.narrow(dim, 0, size)
    return state


@dataclass
class StateBuffer:
    """The buffer of a trace."""

    initial: tuple[torch.Tensor, ...]
    shapes: list[list[list[int]]]
    """Of each state, by bucket."""
    preprocessor: StatePreprocessor | None = None
    current: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self.current = [tensor.detach().clone() for tensor in self.initial]

    def views(self, bucket: int) -> list[torch.Tensor]:
        """What a bucket's program takes, as views of the buffer.

        Raises:
            ValueError: the preprocessor's answer has other shapes, or is no view, so that the state would be lost.
        """
        wanted = self.shapes[bucket]
        if self.preprocessor is None:
            return [leading_view(state, shape) for state, shape in zip(self.current, wanted, strict=True)]
        views = list(self.preprocessor(self.shapes, self.current, torch.tensor(bucket)))
        got = [list(view.shape) for view in views]
        if got != wanted:
            raise ValueError(f"shared_state_buffer_preprocessor gave {got} for bucket {bucket}, which takes {wanted}")
        ours = {_storage(state) for state in self.current}
        if any(_storage(view) not in ours for view in views):
            raise ValueError(
                "shared_state_buffer_preprocessor gave a copy of the state: give views of it (slices, narrow, view), "
                "for the next state is written into them"
            )
        return views

    def store_next(self, views: Sequence[torch.Tensor], following: Sequence[torch.Tensor]) -> None:
        """Write the next values into the buffer."""
        # All of them before the first is written: an output may be another state's view.
        values = [
            value.clone() if _storage(value) in {_storage(view) for view in views} else value for value in following
        ]
        for view, value in zip(views, values, strict=True):
            view.copy_(value)

    def copy_if_state(self, answer: torch.Tensor) -> torch.Tensor:
        """An answer that later calls do not change."""
        return answer.clone() if _storage(answer) in {_storage(state) for state in self.current} else answer


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
