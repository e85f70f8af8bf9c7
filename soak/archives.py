"""The two archives under load: a model of whole sequences, and the same model in sessions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import chaos.model
import torch
from chaos.model import Tagger
from chaos.script import LONGEST_CHUNK

TAGGER, STREAM = "tagger", "stream"
LONGEST = 32
"""The longest whole sequence in timesteps."""
MOST_SEQUENCES = 16
MOST_TIMESTEPS = 256
MOST_BYTES = 65_536

_FRONTEND = """\
minWorkers: {workers}
maxWorkers: {workers}
batchSize: 16
maxBatchDelay: 2
responseTimeout: 60
neuron_lstm:
  inputs:
    ids: {{dtype: int64, shape: [batch, time]}}
  lengths: lengths
  outputs: [tags, topic]
  backend: {backend}
"""
# sessions whose client hung up expire during the warm-up of a long run, so their number soon stays the same
_BLOCKS = {
    TAGGER: f"""\
  buckets: {{batch: [1, 8], length: [16, {LONGEST}]}}
  limits: {{sequences: {MOST_SEQUENCES}, timesteps: {MOST_TIMESTEPS}, body_bytes: {MOST_BYTES}}}
""",
    STREAM: f"""\
  buckets: {{batch: [1, 8], length: [{LONGEST_CHUNK}]}}
  streaming: {{idle_seconds: 60, confirm_seconds: 60}}
""",
}


def make_archives(model: Tagger, store: Path, workers: int, backend: str) -> None:
    """Write `tagger.mar` and `stream.mar` to the folder `store`, each for `workers` workers.

    Raises:
        subprocess.CalledProcessError: the archiver failed; `output` holds its output.
    """
    shutil.copy(Path(chaos.model.__file__), store / "model.py")
    torch.save(model.state_dict(), store / "weights.pt")
    for name, block in _BLOCKS.items():
        (store / f"{name}.yaml").write_text(_FRONTEND.format(workers=workers, backend=backend) + block)
        flags = "--version 1.0 --model-file model.py --serialized-file weights.pt --handler neuron_lstm"
        subprocess.run(
            [
                *(str(Path(sys.executable).with_name("torch-model-archiver")), *flags.split()),
                *("--model-name", name, "--config-file", f"{name}.yaml"),
            ],
            cwd=store,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
