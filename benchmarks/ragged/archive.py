"""The benchmark's models as archives, made by the real command."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from ..packaging import run_archiver
from .cases import LONGEST, Size
from .model import Ragged

_CONFIG = """\
minWorkers: 1
maxWorkers: 1
batchSize: 32
maxBatchDelay: 2
neuron_lstm:
  model: {{args: {{features: {0.features}, hidden: {0.hidden}, layers: {0.layers}, bidirectional: {0.bidirectional}}}}}
  inputs:
    frames: {{dtype: float32, shape: [time, batch, {0.features}]}}
  lengths: lengths
  outputs: [states, last]
  buckets: {{batch: [1, 8, 32], length: [16, 64, 128, {longest}]}}
  backend: {backend}
"""


def make_model(size: Size) -> Ragged:
    """The model with its weights, which are the same in every run."""
    torch.manual_seed(0)
    return Ragged(size.features, size.hidden, size.layers, size.bidirectional).eval()


def packaged(model: Ragged, size: Size, folder: Path, backend: str) -> Path:
    """Run `neuron-lstm archive` in a new folder, as a user does.

    Returns the folder of the archive's files.

    Raises:
        CannotArchive: the command failed.
    """
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("model.py"), folder)
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / "model-config.yaml").write_text(_CONFIG.format(size, longest=LONGEST, backend=backend))
    return run_archiver(folder, "ragged", str(size))
