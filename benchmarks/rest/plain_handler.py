"""The rival: what someone writes who knows TorchServe and packed sequences, and has no time for more.

Batches are padded and packed, the model runs in eager mode with its share of the cores, without gradients.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from ts.torch_handler.base_handler import BaseHandler


class PlainHandler(BaseHandler):  # type: ignore[misc] # ts has no types
    """A body is a JSON list of token ids, an answer the list of its scores."""

    def initialize(self, context: Any) -> None:
        """Load the model as TorchServe does."""
        super().initialize(context)
        workers = context.model_yaml_config["maxWorkers"]
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))

    def preprocess(self, data: Sequence[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows to ids [B, T], lengths [B]."""
        ids = [torch.tensor(row["body"], dtype=torch.int64) for row in data]
        return pad_sequence(ids, batch_first=True), torch.tensor([len(row) for row in ids])

    def inference(self, data: tuple[torch.Tensor, torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Ids and lengths to scores [B, 16]."""
        with torch.inference_mode():
            scores: torch.Tensor = self.model(*data)
        return scores

    def postprocess(self, data: torch.Tensor) -> list[list[float]]:
        """One list a row."""
        scores: list[list[float]] = data.tolist()
        return scores
