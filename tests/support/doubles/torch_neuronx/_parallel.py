"""DataParallel: a batch over the visible cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._cores import visible_cores
from ._trace import dynamic_batch


class DataParallel(torch.nn.Module):
    """A traced module that takes larger batches, with one part for each core."""

    def __init__(
        self, model: Any, device_ids: Sequence[int] | None = None, dim: int = 0, set_dynamic_batching: bool = True
    ) -> None:
        super().__init__()
        if set_dynamic_batching and dim != 0:
            raise ValueError("dynamic batching is for dimension 0 alone")
        self.device_ids = list(device_ids) if device_ids is not None else list(range(visible_cores()))
        self.num_workers = 2 * len(self.device_ids)
        self.split_size = 1
        self.dim = dim
        self.model = dynamic_batch(model) if set_dynamic_batching else model

    def disable_dynamic_batching(self) -> None:
        """Require the compiled shape of every part from now on."""
        self.model.dynamic = False

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The answers of all parts together."""
        parts = [x.chunk(len(self.device_ids), self.dim) for x in inputs]
        answers = [self.model(*part) for part in zip(*parts)]  # noqa: B905 - inputs have equal batches
        if isinstance(answers[0], torch.Tensor):
            return torch.cat(answers, self.dim)
        return tuple(torch.cat(kind, self.dim) for kind in zip(*answers))  # noqa: B905 - one module's answers
