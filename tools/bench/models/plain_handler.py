"""The compared handler: plain code of someone who knows TorchServe and packed sequences.

Batches are padded and packed. The model runs in eager mode without gradients, with its share of the cores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from ts.torch_handler.base_handler import BaseHandler


class PlainHandler(BaseHandler):  # type: ignore[misc] # ts has no types
    """A handler for bodies that are JSON lists of token ids; an answer is the list of scores."""

    def initialize(self, context: Any) -> None:
        """Load the model as TorchServe does."""
        super().initialize(context)
        workers = context.model_yaml_config["maxWorkers"]
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))

    def preprocess(self, data: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Convert rows to ids [B, T] and lengths [B]."""
        ids = [torch.tensor(row["body"], dtype=torch.int64) for row in data]
        return pad_sequence(ids, batch_first=True), torch.tensor([len(row) for row in ids])

    def inference(self, data: tuple[torch.Tensor, torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Convert ids and lengths to scores [B, 16]."""
        with torch.inference_mode():
            scores: torch.Tensor = self.model(*data)
        return scores

    def postprocess(self, data: torch.Tensor) -> list[list[float]]:
        """Convert the scores to one list for each row."""
        scores: list[list[float]] = data.tolist()
        return scores
