"""ONNX Runtime's session of the REST benchmark's model, by torch's exporter for packed sequences."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from .rest.model import TokenClassifier


class _Sorted(nn.Module):
    """The same model for rows that are sorted by length: the exporter cannot sort within the graph."""

    def __init__(self, model: TokenClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.model.embed(ids), lengths, batch_first=True)
        _, (state, _) = self.model.lstm(packed)
        scores: torch.Tensor = self.model.classify(state[-1])
        return scores


def export(model: TokenClassifier, file: Path) -> None:
    """Write the model of ids int64[B, T] and lengths int64[B], whose output is scores float32[B, 16]."""
    example = (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 2]))
    batch = {0: "batch"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated, and warns
        torch.onnx.export(
            _Sorted(model).eval(),
            example,
            file,
            dynamo=False,
            input_names=["ids", "lengths"],
            output_names=["scores"],
            dynamic_axes={"ids": {0: "batch", 1: "time"}, "lengths": batch, "scores": batch},
        )


def open_session(file: Path, threads: int) -> Any:
    """Open a session whose calls use so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
