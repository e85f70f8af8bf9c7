"""An unpacked archive of a small model, written by hand for the eager engine: made in a second."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fake_model import GRID, make_manifest
from torch import nn

import torchserve_neuron_lstm
from torchserve_neuron_lstm.archiver_ext.archive.file_list import write_list
from torchserve_neuron_lstm.backends.eager import Eager
from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest, MeasuredCost, MeasuredError, Variant, read_manifest
from torchserve_neuron_lstm.config.manifest_writer import write_manifest

VOCABULARY = 20
CODEC = """
class Codec:
    content_type = "text/plain"

    def decode(self, body, content_type):
        return {"ids": [int(word) for word in body.decode().split()]}

    def encode(self, outputs, inputs):
        return b" ".join(b"%.3f" % row[0].item() for row in outputs["sums"])
"""


class Sums(nn.Module):
    """The running sum of each id's vector, zero on the padding: a recurrence without a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 3)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor]:
        """Map ids int64[B, T] and lengths int64[B] to float32[B, T, 3]."""
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        return ((self.embed(ids) * real[:, :, None]).cumsum(1),)


def make_model() -> Sums:
    """The model with the weights of every archive made here."""
    torch.manual_seed(0)
    return Sums().eval()


def sums_of(ids: list[int]) -> torch.Tensor:
    """The model's answer [T, 3] to one sequence alone."""
    with torch.no_grad():
        sums: torch.Tensor = make_model()(torch.tensor([ids]), torch.tensor([len(ids)]))[0][0]
    return sums


def make_archive(folder: Path, **facts: object) -> Path:
    """Write an archive to `folder`, with the serving code, and with some values of its manifest changed."""
    model = make_model()
    (folder / "programs" / "eager" / "any").mkdir(parents=True)
    torch.save(model.state_dict(), folder / "weights.pt")
    Eager().compile(_exported(model), None, folder / "programs" / "eager" / "any")
    add_serving_half(folder)
    (folder / "codec_of_tests.py").write_text(CODEC)
    (folder / "MAR-INF").mkdir()
    told = {"model": {"modelName": "sums", "modelVersion": "2.0", "handler": "neuron_lstm.py"}}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(told))
    write_manifest(_manifest(folder, facts), folder)
    write_list(folder)
    return folder


def as_mar(folder: Path, file: Path | None = None) -> Path:
    """Pack a folder as the archive `file`; without one, beside the folder."""
    file = file or folder.with_suffix(".mar")
    return Path(shutil.make_archive(str(file.with_suffix("")), "zip", folder)).rename(file)


def as_tar(folder: Path) -> Path:
    return Path(shutil.make_archive(str(folder), "gztar", folder.parent, folder.name))


def renamed(archive: Path, name: str, folder: Path) -> Path:
    """A copy of an archive whose model has another name."""
    copy = Path(shutil.copytree(archive, folder / name))
    told = copy / "MAR-INF" / "MANIFEST.json"
    manifest = json.loads(told.read_text())
    manifest["model"]["modelName"] = name
    told.write_text(json.dumps(manifest))
    write_list(copy)
    return copy


def change_manifest(archive: Path, **facts: Any) -> Path:
    """Write some values of an archive's manifest. Returns the archive."""
    write_manifest(replace(read_manifest(archive), **facts), archive)
    return archive


def _exported(model: Sums) -> torch.export.ExportedProgram:
    batch, time = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("time", min=1, max=64)
    example = (torch.zeros(3, 5, dtype=torch.int64), torch.tensor([5, 2, 1]))
    return torch.export.export(model, example, dynamic_shapes=({0: batch, 1: time}, {0: batch}))


def add_serving_half(folder: Path) -> None:
    package = Path(torchserve_neuron_lstm.__path__[0])
    target = folder / "torchserve_neuron_lstm"
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("archiver_ext", "__pycache__"))
    shutil.copy(package / "handlers" / "neuron_lstm.py", folder)


def _manifest(folder: Path, facts: dict[str, object]) -> Manifest:
    given: dict[str, Any] = {
        "backend": "eager",
        "requires": tuple((need.distribution, need.module, need.version) for need in Eager().requirements()),
        "inputs": (TensorSpec("ids", "int64", ("batch", "time"), vocabulary=VOCABULARY),),
        "outputs": (TensorSpec("sums", "float32", ("batch", "time", 3)),),
        "variants": (Variant("sequence", None, "programs/eager/any"),),
        "checks": tuple(MeasuredError(bucket, 0.0) for bucket in GRID.buckets),
        "costs": tuple(MeasuredCost("sequence", bucket, 0.5) for bucket in GRID.buckets),
        "weights": "weights.pt",
    }
    return make_manifest(**(given | facts))
