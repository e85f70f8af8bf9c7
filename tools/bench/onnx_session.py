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

_ROWS = {0: "batch"}
CLASSIFIER = {"ids": {0: "batch", 1: "time"}, "lengths": _ROWS, "scores": _ROWS}
"""The inputs and the output of the classifier, with their dimensions of any size."""
_STEPS = {0: "time", 1: "batch"}
RAGGED = {"frames": _STEPS, "lengths": _ROWS, "states": _STEPS, "last": _ROWS}
"""The same of the recurrent layers."""


def export(
    model: Ragged | TokenClassifier, sequences: torch.Tensor, axes: Mapping[str, Mapping[int, str]], file: Path
) -> None:
    """Export with `sequence_lens` of the LSTM operators, by an example of two rows and three timesteps."""
    for_sorted = deepcopy(model).eval()
    for_sorted.rows_are_sorted = True
    names: Sequence[str] = [*axes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that supports packed sequences is deprecated, and warns
        torch.onnx.export(
            for_sorted,
            (sequences, torch.tensor([3, 2])),
            file,
            dynamo=False,
            input_names=names[:2],
            output_names=names[2:],
            dynamic_axes=axes,
        )


def open_session(file: Path, threads: int) -> Any:
    """Open a session whose calls use so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
