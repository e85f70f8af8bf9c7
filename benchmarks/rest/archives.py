"""The same model twice: with the plain handler by torch-model-archiver, and with ours."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from .model import TokenClassifier

LONGEST = 330  # tokens
PLAIN, OURS = "plain", "ours"
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2, "int8": 5e-2}
"""Largest error of an output, absolute and relative, by the precision of `ours.mar`."""

_FRONTEND = """\
minWorkers: {workers}
maxWorkers: {workers}
batchSize: {batch_size}
maxBatchDelay: {delay_ms}
responseTimeout: 60
"""
_BLOCK = f"""\
neuron_lstm:
  inputs:
    ids: {{dtype: int64, shape: [batch, time]}}
  lengths: lengths
  outputs: [scores]
  buckets: {{batch: [1, 8, 32], length: [16, 64, 128, {LONGEST}]}}
  backend: BACKEND
"""
_HANDLERS = {PLAIN: "plain_handler.py", OURS: "neuron_lstm"}


def _programs() -> Path:
    """The folder of the programs of the environment that has torch."""
    return Path(str(torch.__file__)).parents[4] / "bin"


def make_model() -> TokenClassifier:
    """The model with weights that are the same in every run."""
    torch.manual_seed(0)
    return TokenClassifier().eval()


def make_archives(
    model: TokenClassifier,
    store: Path,
    workers: int,
    batch_size: int,
    delay_ms: int,
    backend: str,
    names: Sequence[str] = (PLAIN, OURS),
    threads: int | None = None,
    precision: str = "float32",
) -> None:
    """Write `plain.mar` and `ours.mar` to the folder `store`, with the same settings of TorchServe.

    `threads` is the number of threads of the engine; None: by the host's cores. `precision` is that of `ours.mar`.

    Raises:
        subprocess.CalledProcessError: the archiver failed; `output` holds its output.
    """
    for name in ("model.py", "plain_handler.py"):
        shutil.copy(Path(__file__).with_name(name), store)
    torch.save(model.state_dict(), store / "weights.pt")
    frontend = _FRONTEND.format(workers=workers, batch_size=batch_size, delay_ms=delay_ms)
    (store / "plain.yaml").write_text(frontend)
    limit = "" if threads is None else f"  threads: {threads}\n"
    block = _BLOCK.replace("BACKEND", backend) + f"  precision: {precision}\n"
    (store / "ours.yaml").write_text(frontend + block + limit)
    for name in names:
        handler = _HANDLERS[name]
        flags = "--version 1.0 --model-file model.py --serialized-file weights.pt"
        own = ["--model-name", name, "--handler", handler, "--config-file", f"{name}.yaml"]
        subprocess.run(
            [str(_programs() / "torch-model-archiver"), *flags.split(), *own],
            cwd=store,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
