"""The served token classifier: its archives, its requests, and clients that load a server with them."""

from __future__ import annotations

import json
import random
import shutil
import urllib.request
from pathlib import Path

import torch

from .harness import package, refuse_differences
from .load import Loaded, http_post, load
from .models.classifier import TokenClassifier
from .ragged import LONGEST, log_normal

PLAIN, OURS = "plain", "ours"
TOKENS = 10_000
_SEQUENCES, _COMPARED = 512, 64
_SETTINGS = {"workers": 1, "batch_size": 32, "delay_ms": 1, "precision": "float32"}
"""Settings in which archives of the classifier may differ."""
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


def make_archive(model: TokenClassifier, name: str, store: Path, **settings: object) -> Path:
    """Write `plain.mar` or `ours.mar` to the folder `store`, and return its path; raises `BenchmarkFailed`."""
    shutil.copy(Path(__file__).parent / "models" / "plain_handler.py", store)
    config = (_FRONTEND + (_BLOCK if name == OURS else "")).format(**{**_SETTINGS, **settings})
    package(model, config, store, name, handler=None if name == OURS else "plain_handler.py")
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
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", json.dumps(ids).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer = torch.tensor(json.load(reply))
        refuse_differences(path, [answer], [expected], tolerance)


def load_server(port: int, path: str, clients: int, seconds: float, seed: int) -> Loaded:
    """Send random requests, which the seed decides, from some clients; raises `BenchmarkFailed` unless all get 200."""
    random.seed(seed)
    requests = [http_post(path, json.dumps(ids).encode()) for ids in draw_sequences()]
    return load(port, requests, clients, seconds)
