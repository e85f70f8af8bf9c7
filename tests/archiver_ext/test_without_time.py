"""Functions, and models without time or batch, are packaged with their own grid and served."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_context import FakeContext

from torchserve_neuron_lstm.archiver_ext import archive_command, model_archiver
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.handlers import torchserve
from torchserve_neuron_lstm.inference.reader import ArchiveReader


@dataclass(frozen=True)
class Source:
    code: str
    inputs: Mapping[str, list[object]]
    """The shape of each input."""
    batches: tuple[int, ...] | None = None

    @property
    def block(self) -> str:
        specs = {name: {"dtype": "float32", "shape": shape} for name, shape in self.inputs.items()}
        buckets = {} if self.batches is None else {"batch": list(self.batches)}
        return f"neuron_lstm:\n  inputs: {json.dumps(specs)}\n  buckets: {json.dumps(buckets)}\n"


SOURCES = {
    "function": Source(
        "def _twice(x):\n    return 2 * x\n\n\ndef func(x, y):\n    return _twice(x) + y\n", {"x": [3], "y": [3]}
    ),
    "mlp": Source(
        """
class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(784, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def forward(self, x):
        return torch.log_softmax(self.layers(x), dim=1)
""",
        {"x": ["batch", 784]},
        (1, 4),
    ),
    "images": Source(
        """
class Conv(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 1, 3)

    def forward(self, x):
        return self.conv(x) + 1
""",
        {"x": ["batch", 1, 28, 28]},
        (4,),
    ),
}
SOURCES["image"] = Source(SOURCES["images"].code, {"x": [1, 1, 3, 3]})


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # a worker sets them for good


def packaged(source: Source, engine: str) -> Path:
    Path("model.py").write_text(f"import torch\n{source.code}")
    Path("model-config.yaml").write_text(f"{source.block}  backend: {engine}\n")
    flags = ["--model-name", "it", "--version", "1", "--model-file", "model.py", "--config-file", "model-config.yaml"]
    state = eager_model(source).state_dict()
    if state:
        torch.save(state, "weights.pt")
        flags += ["--serialized-file", "weights.pt"]
    parsed = model_archiver.parse([*flags, "--handler", "neuron_lstm", "--export-path", "."])
    assert archive_command.archive(parsed, model_archiver.manifest_json(parsed)) == 0
    return Path("it.mar")


def eager_model(source: Source) -> torch.nn.Module:
    names: dict[str, Any] = {"torch": torch}
    exec(source.code, names)
    if "func" in names:
        wrapped: torch.nn.Module = type("Function", (torch.nn.Module,), {"forward": staticmethod(names["func"])})()
        return wrapped
    (found,) = (value for value in names.values() if isinstance(value, type))
    model: torch.nn.Module = found().eval()
    if Path("weights.pt").exists():
        model.load_state_dict(torch.load("weights.pt"))
    return model


@pytest.mark.few(1)
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("function", "eager"),
        ("mlp", "eager"),
        ("images", "eager"),
        ("image", "eager"),
        ("mlp", "onnxruntime"),
        pytest.param("function", "onnxruntime", marks=pytest.mark.long),
        pytest.param("image", "inductor", marks=pytest.mark.long),
        pytest.param("images", "inductor", marks=pytest.mark.long),
    ],
)
def test_it_is_packaged_and_served_as_the_model_answers(name: str, engine: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    shapes = {key: [size for size in shape if isinstance(size, int)] for key, shape in source.inputs.items()}
    requests = [{key: torch.randn(shape) for key, shape in shapes.items()} for _ in range(3)]

    with ArchiveReader(packaged(source, engine)).unpacked() as folder:
        assert read_manifest(folder).grid == BucketGrid(source.batches or (1,), (1,))
        context = FakeContext(headers=[{}] * 4, model_dir=folder)
        service = torchserve.load(context)
        sent = [{key: tensor.tolist() for key, tensor in request.items()} for request in requests]
        bodies = torchserve.handle(
            service, [{"body": one} for one in [*sent, {key: [1.0, 2.0] for key in shapes}]], context
        )

    assert context.statuses == {3: 400}
    model = eager_model(source)
    for request, body in zip(requests, bodies, strict=False):
        tensors = [request[key][None] if "batch" in source.inputs[key] else request[key] for key in shapes]
        with torch.no_grad():
            expected = model(*tensors)
        expected = expected[0] if source.batches else expected
        torch.testing.assert_close(torch.tensor(json.loads(body)), expected, atol=1e-5, rtol=1e-5)
