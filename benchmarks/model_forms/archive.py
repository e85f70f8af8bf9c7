"""The models as archives, made by the real command."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from ..packaging import run_archiver

_CONFIG = """\
neuron_lstm:
  model: {{class: {name}}}
  inputs:
    frames: {{dtype: float32, shape: [batch, time, {features}]}}
  buckets: {{batch: [1, 8, 32], length: [16, 64, {longest}]}}
  backend: native
"""


def packaged(model: torch.nn.Module, features: int, longest: int, folder: Path) -> Path:
    """Run `neuron-lstm archive` in a new folder, as a user does; the folder of the archive's files.

    Raises:
        CannotArchive: the command failed; the message holds its output.
    """
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("models.py"), folder / "model.py")
    torch.save(model.state_dict(), folder / "weights.pt")
    config = _CONFIG.format(name=type(model).__name__, features=features, longest=longest)
    (folder / "model-config.yaml").write_text(config, encoding="utf-8")
    return run_archiver(folder, "forms", type(model).__name__)
