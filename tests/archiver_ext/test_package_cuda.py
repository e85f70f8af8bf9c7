"""The standard command with `backend: cuda` without a GPU, and a double of one on the host."""

import json
from pathlib import Path

import pytest
import torch
from archiving import Source, archive, archived, write_source
from graph_device import GraphDevice

from torchserve_neuron_lstm.backends.cuda import engine
from torchserve_neuron_lstm.backends.interface import LoadError
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

from .archived_answers import largest_difference, unpacked

pytestmark = pytest.mark.ci
MODEL = '''
import torch


class Tagger(torch.nn.Module):
    """Scores of each timestep, and the maximum of all, from a packed LSTM."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.lstm = torch.nn.LSTM(8, 6, 2, batch_first=True{both})
        self.head = torch.nn.Linear({width}, 3)

    def forward(self, ids, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            self.embedding(ids), lengths, batch_first=True, enforce_sorted=False
        )
        y, (h, c) = self.lstm(packed)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True, padding_value=float("-inf"))
        return self.head(y.clamp(min=-9)), c[-1] + y.amax(1)[:, :6]
'''
BLOCK = """
inputs: {ids: {dtype: int64, shape: [batch, time]}}
lengths: lengths
outputs: [scores, pooled]
buckets: {batch: [1, 3], length: [4, 7]}
"""
LENGTHS = [3, 7, 1, 5, 4]


@pytest.fixture(scope="module", params=["sequence", "chunk"])
def packaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Path]:
    place = tmp_path_factory.mktemp("cuda")
    whole = request.param == "sequence"
    text = MODEL.format(both=", bidirectional=True" if whole else "", width=12 if whole else 6)
    (place / "tagger.py").write_text(text)
    source = write_source(place / "user", place / "tagger.py", f"{BLOCK}backend: cuda\n")
    archived(source, "tagger", place)
    unpacked(place / "tagger.mar", place / "tagger")
    assert json.loads((place / "tagger" / "variants.json").read_text())["kind"] == request.param
    return source, place / "tagger"


@pytest.fixture(scope="module")
def partitioned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Path]:
    place = tmp_path_factory.mktemp("partitioned")
    (place / "tagger.py").write_text(MODEL.format(both=", bidirectional=True", width=12))
    keys = 'backend: cuda\npartitioner_config: {ops_to_partition: ["aten::clamp"]}\n'
    source = write_source(place / "user", place / "tagger.py", BLOCK + keys)
    archived(source, "tagger", place)
    return source, unpacked(place / "tagger.mar", place / "tagger")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> GraphDevice:
    made = GraphDevice()
    monkeypatch.setattr(engine, "gpu_missing", lambda: None)
    monkeypatch.setattr(engine, "gpu_name", lambda setting: made.name)
    monkeypatch.setattr(engine, "TorchDevice", lambda index: made)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return made


@pytest.mark.few(1)
def test_a_host_with_a_gpu_answers_as_the_model(packaged: tuple[Source, Path], device: GraphDevice) -> None:
    source, host = packaged
    variants = load_archive(host, threads=1)
    captured = len(device.captured)

    assert largest_difference(variants, source.model, LENGTHS) <= 1e-5
    assert len(device.captured) == captured >= 4


def test_segments_share_weights_and_are_captured_at_load(partitioned: tuple[Source, Path], device: GraphDevice) -> None:
    source, host = partitioned
    variants = load_archive(host, threads=1, device="cuda:1")
    captured, buckets = len(device.captured), len(variants.manifest.grid.buckets)

    assert largest_difference(variants, source.model, LENGTHS) <= 1e-5
    assert len(device.captured) == captured == 2 * buckets
    assert device.uploads == len({*source.model.state_dict()})


def test_segments_are_on_the_gpu_that_the_server_gives(partitioned: tuple[Source, Path], device: GraphDevice) -> None:
    with pytest.raises(LoadError, match=r"there is no cuda:2 here"):
        load_archive(partitioned[1], threads=1, device="cuda:2")


def test_loading_segments_needs_no_more_memory_than_serving_them(
    partitioned: tuple[Source, Path], monkeypatch: pytest.MonkeyPatch, device: GraphDevice
) -> None:
    """All segments of all buckets run before the first is captured: no run is beside the graphs."""
    held = load_archive(partitioned[1], threads=1)
    small = GraphDevice(device.used + device.pool)
    monkeypatch.setattr(engine, "TorchDevice", lambda index: small)
    loaded = load_archive(partitioned[1], threads=1)

    assert len(small.captured) == 2 * len(loaded.manifest.grid.buckets)
    assert held.programs.keys() == loaded.programs.keys()


def test_a_gpu_that_is_not_there_is_told(packaged: tuple[Source, Path], device: GraphDevice) -> None:
    _, host = packaged
    with pytest.raises(LoadError, match=r"there is no cuda:2 here, but cuda:0 to cuda:1"):
        load_archive(host, threads=1, device="cuda:2")
    assert load_archive(host, threads=1, device="cuda:1").manifest.device == "cuda:1"


def test_a_host_without_a_gpu_refuses(packaged: tuple[Source, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "gpu_missing", lambda: "torch sees no NVIDIA GPU")
    with pytest.raises(LoadError, match="run on an NVIDIA GPU: torch sees no NVIDIA GPU"):
        load_archive(packaged[1], threads=1)


def test_a_device_is_of_an_engine_that_has_one(tmp_path: Path) -> None:
    """The key would do nothing with another engine."""
    (tmp_path / "tagger.py").write_text(MODEL.format(both="", width=6))
    source = write_source(tmp_path / "user", tmp_path / "tagger.py", f"{BLOCK}backend: eager\ndevice: cuda:0\n")
    done = archive(source, "tagger", tmp_path)

    assert done.returncode != 0
    assert "neuron_lstm.device: eager runs on no GPU: leave device out" in done.stdout
