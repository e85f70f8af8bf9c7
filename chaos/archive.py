"""The model as an archive for TorchServe, made by the standard command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

from .model import Tagger
from .script import LONGEST_CHUNK

NAME = "tagger"

_CONFIG = f"""\
minWorkers: WORKERS
maxWorkers: WORKERS
batchSize: 16
maxBatchDelay: 2
responseTimeout: 30
neuron_lstm:
  inputs:
    ids: {{dtype: int64, shape: [batch, time]}}
  lengths: lengths
  outputs: [tags, topic]
  buckets: {{batch: [1, 16], length: [{LONGEST_CHUNK}]}}
  backend: onnxruntime
"""


def make_model() -> Tagger:
    """The model with weights that are the same in every run."""
    torch.manual_seed(0)
    return Tagger().eval()


def make_archive(model: Tagger, store: Path, workers: int, streaming: str | None) -> None:
    """Write `tagger.mar` to the folder `store`, with these settings of its sessions.

    `streaming` is the block of that name; None: the archive has no sessions.

    Raises:
        subprocess.CalledProcessError: the archiver failed; `output` holds its output.
    """
    shutil.copy(Path(__file__).with_name("model.py"), store)
    torch.save(model.state_dict(), store / "weights.pt")
    config = _CONFIG.replace("WORKERS", str(workers))
    (store / "model-config.yaml").write_text(config if streaming is None else f"{config}  streaming: {streaming}\n")
    flags = "--version 1.0 --model-file model.py --serialized-file weights.pt --handler neuron_lstm"
    subprocess.run(
        [
            *(str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", NAME, *flags.split()),
            *("--config-file", "model-config.yaml", "--force"),
        ],
        cwd=store,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
