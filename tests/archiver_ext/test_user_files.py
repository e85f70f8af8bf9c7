"""A training project's own files: several classes, a method, and a checkpoint; packaged and served."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_archiver
from worker import answered

from torchserve_neuron_lstm.backends.weights import read_weights

from .archived_answers import unpacked
from .conftest import Project

MODEL = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Encoder(nn.Module):
    def __init__(self, sizes: tuple[int, int]):
        super().__init__()
        self.embed = nn.Embedding(*sizes)
        self.lstm = nn.LSTM(sizes[1], 6, batch_first=True)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


class Tagger(nn.Module):
    def __init__(self, sizes: tuple[int, int] = (11, 5)):
        super().__init__()
        assert isinstance(sizes, tuple)
        self.encoder = Encoder(sizes)
        self.out = nn.Linear(6, 3)

    def train(self, mode=True):
        super().train(mode)

    def forward(self, ids, lengths, targets=None):
        scores = self.out(self.encoder(ids, lengths))
        return scores if targets is None else (scores, nn.functional.cross_entropy(scores.mT, targets))

    def infer(self, ids, lengths, temperature: float):
        return torch.softmax(self(ids, lengths) / temperature, -1)
"""
CONFIG = """
neuron_lstm:
  model: {%s method: infer, args: {sizes: [11, 5]}, forward: {temperature: 2.0}}
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  lengths: lengths
  buckets: {batch: [2], length: [4]}
  backend: %s
"""
REQUESTS = ([1, 2, 3], [4])


def written(project: Project, backend: str = "eager", key: str = "class: Tagger,") -> torch.nn.Module:
    (project.folder / "model.py").write_text(MODEL)
    (project.folder / "model-config.yaml").write_text(CONFIG % (key, backend))
    names: dict[str, Any] = {}
    exec(MODEL, names)
    model: torch.nn.Module = names["Tagger"]()
    checkpoint(project, model, "weights.pt")
    return model


def checkpoint(project: Project, model: torch.nn.Module, name: str) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    ids, lengths = torch.tensor([[1, 2, 3]]), torch.tensor([3])
    model(ids, lengths, targets=ids - 1)[1].backward()
    optimizer.step()
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "optimizer": optimizer.state_dict(), "epoch": 1}, project.folder / name)
    model.eval()


def served(folder: Path) -> list[torch.Tensor]:
    responses = answered(folder, REQUESTS)
    assert [response.status for response in responses] == [200, 200]
    return [torch.tensor(json.loads(response.body)) for response in responses]


def expected(model: torch.nn.Module) -> list[torch.Tensor]:
    infer: Any = model.infer
    with torch.no_grad():
        return [infer(torch.tensor([ids]), torch.tensor([len(ids)]), 2.0)[0] for ids in REQUESTS]


@pytest.mark.few(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("backend", "key"),
    [("eager", ""), ("native", "class: Tagger,"), pytest.param("onnxruntime", "", marks=pytest.mark.long)],
)
def test_a_method_of_one_of_two_classes_is_served_with_the_weights_of_a_checkpoint(
    project: Project, backend: str, key: str
) -> None:
    model = written(project, backend, key)
    done = project.archive("--archive-format", "no-archive")
    assert done.returncode == 0, done.stderr

    assert "weights.pt['state_dict'] holds the weights; the prefix 'module.' of their names was left out" in done.stdout
    assert ("model.py: the model is the class Tagger, which uses the others (Encoder)" in done.stdout) == (not key)
    assert list(read_weights(project.folder / "tiny" / "weights.pt")) == list(model.state_dict())
    for answer, alone in zip(served(project.folder / "tiny"), expected(model), strict=True):
        torch.testing.assert_close(answer, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_weights_are_replaced_by_those_of_a_checkpoint(project: Project) -> None:
    model = written(project)
    assert project.archive().returncode == 0
    checkpoint(project, model, "later.pth")
    command = ["neuron-lstm", "replace-weights", "tiny.mar", "later.pth", "-o", "later.mar"]
    done = warm_archiver.run(command, project.folder, project.environment())

    assert done.returncode == 0, done.stderr
    assert "later.pth['state_dict'] holds the weights; the prefix 'module.' of their names was left out" in done.stdout
    later = unpacked(project.folder / "later.mar", project.folder / "later")
    for answer, alone in zip(served(later), expected(model), strict=True):
        torch.testing.assert_close(answer, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.timeout(120)
def test_a_method_with_other_arguments_is_named_in_the_refusal(project: Project) -> None:
    written(project)
    file = project.folder / "model-config.yaml"
    file.write_text(file.read_text().replace("temperature: 2.0", "heat: 2.0"))
    done = project.archive()

    assert done.returncode == 1
    assert "Tagger.infer(ids, lengths, temperature: float) cannot be called" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(120)
def test_analyze_tells_what_it_read(project: Project) -> None:
    """On standard error: the output may be JSON."""
    written(project, key="")
    words = "analyze --model-file model.py --serialized-file weights.pt --config-file model-config.yaml --json"
    done = project.run("neuron-lstm", *words.split(), "--backend", "eager")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["backend"] == "eager"
    assert "weights.pt['state_dict'] holds the weights" in done.stderr
    assert "the model is the class Tagger" in done.stderr
