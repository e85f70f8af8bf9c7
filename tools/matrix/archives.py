"""Archives of every test model, with requests and the answers of eager mode: `python -m tools.matrix.archives FOLDER`.

It runs in each packaging environment. FOLDER gets `MODEL-BACKEND.mar` for each, and `requests.json`, which `host.py`
reads on other hosts.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from archiving import Source, archive
from model_cases import CASES, Case
from ragged import alone, ragged

from torchserve_neuron_lstm.config.load import load_config
from torchserve_neuron_lstm.config.manifest import Manifest, parse_manifest
from torchserve_neuron_lstm.config.schema import ServingConfig
from torchserve_neuron_lstm.inference.reader import ArchiveReader

SUPPORT = Path(__file__).resolve().parents[2] / "tests" / "support"
BACKENDS = ("native", "onnxruntime", "eager")
LENGTHS = (5, 1, 16, 9, 3, 12)
"""Timesteps of the requests to a model that takes every length; another one gets its buckets' lengths."""
_FRONTEND = "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 8\nmaxBatchDelay: 1\n"
_MODEL = """import sys
import torch
sys.path.insert(0, {support!r})
from archiving import Source, archive
from model_cases import CASES

_Base = next(case.make for case in CASES if case.name == {name!r})


class Model(_Base):
    def __init__(self):
        torch.manual_seed(0)  # for buffers outside of the state dict
        super().__init__()
"""


def main(folder: Path) -> None:
    """Package all models; a refusal by an engine is told and counted."""
    folder.mkdir(parents=True, exist_ok=True)
    packaged: dict[str, Any] = {}
    for case in CASES:
        for backend in BACKENDS:
            packaged[f"{case.name}-{backend}"] = _package(case, backend, folder)
            print(".", end="", flush=True)
    (folder / "requests.json").write_text(json.dumps(packaged), encoding="utf-8")
    refused = {name: entry["refused"] for name, entry in packaged.items() if "refused" in entry}
    for name, reason in refused.items():
        print(f"\n  {name}: {reason}", end="")
    print(f"\n{len(packaged) - len(refused)} archives, {len(refused)} refused")


def _package(case: Case, backend: str, store: Path) -> dict[str, Any]:
    """Package one model; returns its requests and answers, or the refusal."""
    with tempfile.TemporaryDirectory() as folder:
        place, name = Path(folder), f"{case.name}-{backend}"
        torch.manual_seed(0)
        model = case.make().eval()
        (place / "model.py").write_text(_MODEL.format(support=str(SUPPORT), name=case.name), encoding="utf-8")
        torch.save(model.state_dict(), place / "weights.pt")
        config = place / "model-config.yaml"
        config.write_text(f"{_FRONTEND}{case.yaml}  backend: {backend}\n", encoding="utf-8")
        done = archive(Source(place, model), name, store, ["--force"])
        if done.returncode:
            return {"refused": next((line for line in done.stdout.splitlines() if "error" in line), "")[:300]}
        manifest = parse_manifest(ArchiveReader(store / f"{name}.mar").manifest_json())
        return {"requests": list(_requests(model, load_config(config), manifest))}


def _requests(model: torch.nn.Module, config: ServingConfig, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield each request's body, and the answer of the model in eager mode to it alone."""
    lengths = [max(length, manifest.shortest) for length in LENGTHS]
    drawn = ragged(manifest.inputs, lengths, seed=1)
    for length, item in zip(drawn.lengths, drawn.items, strict=True):
        body = {spec.name: tensor.tolist() for spec, tensor in zip(manifest.inputs, item, strict=True)}
        answers = alone(model, config, item, length)
        named = {spec.name: answer.flatten().tolist() for spec, answer in zip(manifest.outputs, answers, strict=True)}
        yield {"body": body, "answer": named}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
