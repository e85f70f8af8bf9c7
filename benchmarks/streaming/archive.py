"""The model of the REST benchmark as a streaming model, with an answer after every token.

It has 128 features, two layers of 256 units and 16 classes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

from ..rest.archives import make_model
from ..rest.model import TokenClassifier

NAME = "classifier"
PREFIX = 20  # timesteps

_CONFIG = f"""\
minWorkers: WORKERS
maxWorkers: WORKERS
batchSize: 32
maxBatchDelay: 2
neuron_lstm:
  inputs:
    ids: {{dtype: int64, shape: [batch, time]}}
  lengths: lengths
  outputs: [scores]
  buckets: {{batch: [1, 8, 32], length: [{PREFIX}]}}
  backend: onnxruntime
  streaming: {{max_sessions: 1000000, idle_seconds: 3600}}
"""


def make_archive(store: Path, workers: int) -> TokenClassifier:
    """Write `classifier.mar` to the folder `store`. Returns the model.

    Raises:
        subprocess.CalledProcessError: the archiver failed; `output` holds its output.
    """
    model = make_model()
    shutil.copy(Path(__file__).parents[1] / "rest" / "model.py", store)
    torch.save(model.state_dict(), store / "weights.pt")
    (store / "model-config.yaml").write_text(_CONFIG.replace("WORKERS", str(workers)))
    flags = "--version 1.0 --model-file model.py --serialized-file weights.pt --handler neuron_lstm"
    subprocess.run(
        [
            *(str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", NAME, *flags.split()),
            *("--config-file", "model-config.yaml"),
        ],
        cwd=store,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return model
