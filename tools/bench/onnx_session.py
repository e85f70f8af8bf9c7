"""ONNX Runtime's session of a packed model, by torch's exporter for packed sequences."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from .models.classifier import TokenClassifier
from .models.ragged import Ragged

Axes = Mapping[str, Mapping[int, str]]


def export_ragged(model: Ragged, file: Path) -> None:
    """Write the model of frames [T, B, F] and lengths [B], whose outputs are states and last."""
    example = (torch.zeros(3, 2, model.lstm.input_size), torch.tensor([3, 2]))
    steps, rows = {0: "time", 1: "batch"}, {0: "batch"}
    axes = {"frames": steps, "lengths": rows, "states": steps, "last": rows}
    _export(model, example, ["frames", "lengths"], ["states", "last"], axes, file)


def export_classifier(model: TokenClassifier, file: Path) -> None:
    """Write the model of ids [B, T] and lengths [B], whose output is scores [B, 16]."""
    example = (torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 2]))
    rows = {0: "batch"}
    axes = {"ids": {0: "batch", 1: "time"}, "lengths": rows, "scores": rows}
    _export(model, example, ["ids", "lengths"], ["scores"], axes, file)


def _export(
    model: Ragged | TokenClassifier,
    example: tuple[torch.Tensor, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    axes: Axes,
    file: Path,
) -> None:
    """Export with `sequence_lens` of the LSTM operators, which need no order of the rows."""
    for_sorted = deepcopy(model).eval()
    for_sorted.rows_are_sorted = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that supports packed sequences is deprecated, and warns
        torch.onnx.export(
            for_sorted,
            example,
            file,
            dynamo=False,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
        )


def open_session(file: Path, threads: int) -> Any:
    """Open a session whose calls use so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
