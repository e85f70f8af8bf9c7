"""The served token classifier: its archives, its requests, and clients that load a server with them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from rest import post_json

from .harness import package, refuse_differences
from .load import Loaded, http_post, load
from .models.classifier import TokenClassifier
from .ragged import LONGEST, log_normal

PLAIN, OURS = "plain", "ours"
TOKENS = 10_000
_SEQUENCES, _COMPARED = 512, 64
_BLOCK = f"""\
neuron_lstm:
  inputs:
    ids: {{{{dtype: int64, shape: [batch, time]}}}}
  lengths: lengths
  outputs: [scores]
  buckets: {{{{batch: [1, 8, 32], length: [16, 64, 128, {LONGEST}]}}}}
  backend: native
  precision: {{precision}}
"""


def make_model() -> TokenClassifier:
    """Return the model, with weights that are the same in every run."""
    torch.manual_seed(0)
    return TokenClassifier().eval()


def make_archive(
    model: TokenClassifier,
    name: str,
    store: Path,
    workers: int = 1,
    batch_size: int = 32,
    delay_ms: int = 1,
    precision: str = "float32",
) -> Path:
    """Write `plain.mar` or `ours.mar` to the folder `store`, and return its path; raises `BenchmarkFailed`."""
    handler = None if name == OURS else str(Path(__file__).parent / "models" / "plain_handler.py")
    frontend = {"minWorkers": workers, "maxWorkers": workers, "batchSize": batch_size, "maxBatchDelay": delay_ms}
    block = _BLOCK.format(precision=precision) if name == OURS else ""
    package(model, block, store, name, handler=handler, frontend=frontend)
    return store / f"{name}.mar"


def draw_sequences() -> list[list[int]]:
    """Return the same sequences of random tokens every time, 26 on average."""
    generator = random.Random(0)
    lengths = log_normal(_SEQUENCES, generator)
    return [[generator.randrange(TOKENS) for _ in range(length)] for length in lengths]


def compare(port: int, path: str, model: TokenClassifier, tolerance: float = 1e-5) -> None:
    """Compare some answers of a server with the model in eager mode; raises `BenchmarkFailed` if one differs."""
    for ids in draw_sequences()[:_COMPARED]:
        with torch.inference_mode():
            expected = model(torch.tensor([ids]), torch.tensor([len(ids)]))[0]
        answer = torch.tensor(post_json(port, path, ids).json)
        refuse_differences(path, [answer], [expected], tolerance)


def load_server(port: int, path: str, clients: int, seconds: float, seed: int) -> Loaded:
    """Send random requests, which the seed decides, from some clients; raises `BenchmarkFailed` unless all get 200."""
    random.seed(seed)
    requests = [http_post(path, json.dumps(ids).encode()) for ids in draw_sequences()]
    return load(port, requests, clients, seconds)
