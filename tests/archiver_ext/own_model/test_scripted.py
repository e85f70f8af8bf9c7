"""TorchScript programs: packaged without a Python file, and served as `torch.jit.load` answers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import warm_archiver
from archiving import ARCHIVER, FRONTEND
from torch import nn
from worker import answered, loaded, predict, request

BLOCK = """\
  inputs: {x: {dtype: float32, shape: [batch, time, 3]}}
  buckets: {batch: [4], length: [4, 9]}
"""
CODEC = """
import json


class Frames:
    def decode(self, body, content_type):
        return {"x": json.loads(body)["frames"]}

    def encode(self, outputs, inputs):
        return {"last": outputs["output"][-1]}
"""


class Counting(nn.Module):
    """State in a buffer that is written, and in one that is replaced."""

    if TYPE_CHECKING:  # torch.jit.script takes annotations of a class for attributes
        calls: torch.Tensor
        last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.lstm(x)[0]
        before, self.last = self.last, y[:, -1]
        if bool(x.max() > 3):
            y = y.flip(1)
        scores: torch.Tensor = y * self.calls + before[:, None]
        return scores


class Failing(nn.Module):
    """Features of another number than those that are declared."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(x)
        return scores


def archived(folder: Path, model: nn.Module, block: str = BLOCK, *more: str) -> subprocess.CompletedProcess[str]:
    torch.manual_seed(0)
    torch.jit.save(torch.jit.script(model.eval()), folder / "model.pt")
    (folder / "model-config.yaml").write_text(f"{FRONTEND}neuron_lstm:\n{block}")
    words = "--version 1.0 --serialized-file model.pt --handler neuron_lstm --config-file model-config.yaml"
    command = [str(ARCHIVER), "--model-name", "m", *words.split(), "--export-path", ".", *more]
    done = warm_archiver.run([*command, "--archive-format", "no-archive"], folder, os.environ)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout + done.stderr)


def alone(folder: Path, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scores: torch.Tensor = torch.jit.load(folder / "model.pt")(x[None])[0]
    return scores


def requests() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    return [torch.randn(length, 3, generator=rng) * scale for length, scale in ((9, 1), (1, 9), (4, 9), (7, 1))]


@pytest.mark.timeout(300)
def test_a_program_answers_each_request_as_the_first_one(tmp_path: Path) -> None:
    done = archived(tmp_path, Counting())
    assert done.returncode == 0, done.stdout
    assert "because it cannot be lowered: model.pt is a TorchScript program" in done.stdout.splitlines()[0]
    assert "requests change self.last, self.calls, which is put back" in done.stdout

    for x, response in zip(requests(), answered(tmp_path / "m", [x.tolist() for x in requests()]), strict=True):
        assert response.status == 200, response.body
        assert torch.equal(torch.tensor(json.loads(response.body)), alone(tmp_path, x))

    command = [str(ARCHIVER.with_name("neuron-lstm")), "replace-weights", "m", "model.pt"]
    refused = warm_archiver.run(command, tmp_path, os.environ)
    assert refused.returncode == 1
    assert "Counting answers by its own code, which is compared while it is packaged: package" in refused.stderr


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_codec_converts_the_bodies_of_a_program(tmp_path: Path) -> None:
    (tmp_path / "coding.py").write_text(CODEC)
    done = archived(tmp_path, Counting(), f"{BLOCK}  codec: coding:Frames\n", "--extra-files", "coding.py")
    assert done.returncode == 0, done.stdout

    (x, *_) = requests()
    with loaded(tmp_path / "m") as service:
        (response,) = predict(service, [request(json.dumps({"frames": x.tolist()}).encode(), "application/json")])
    assert response.status == 200, response.body
    assert torch.equal(torch.tensor(json.loads(response.body)["last"]), alone(tmp_path, x)[-1])


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (Counting, "lowering: required", "model.pt is a TorchScript program, whose code cannot be traced"),
        (Counting, "streaming: {}", "model.pt is a TorchScript program, whose code cannot be traced"),
        (Counting, "model: {args: {size: 3}}", "neuron_lstm.model.args: model.pt is a TorchScript program"),
        (Failing, "lowering: auto", "scores: torch.Tensor = self.out(x)): "),
    ],
)
def test_what_cannot_be_served_is_refused(model: type[nn.Module], more: str, said: str, tmp_path: Path) -> None:
    done = archived(tmp_path, model(), f"{BLOCK}  {more}\n")

    assert done.returncode == 1
    assert said in done.stdout
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "m").exists()


def test_a_program_in_the_place_of_a_state_dict_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\n\nclass Model(nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"
    )

    done = archived(tmp_path, Counting(), BLOCK, "--model-file", "model.py")

    assert done.returncode == 1
    assert "Without --model-file, the program itself is served" in done.stdout
