"""A user's folder with a small real model, and the real commands, run in it as processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import warm_archiver

from torchserve_neuron_lstm.archiver_ext import archive_command, model_archiver

BIN = Path(sys.executable).parent

MODEL = '''
import torch


class Tiny(torch.nn.Module):
    """Two answers of a packed LSTM: logits of every step, and the last state."""

    def __init__(self, hidden=6):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 5)
        self.lstm = torch.nn.LSTM(5, hidden, batch_first=True)
        self.head = torch.nn.Linear(hidden, 3)

    def forward(self, ids, lengths):
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            self.embedding(ids), lengths, batch_first=True, enforce_sorted=False
        )
        answers, (state, _) = self.lstm(packed)
        answers, _ = torch.nn.utils.rnn.pad_packed_sequence(answers, batch_first=True)
        return self.head(answers), state[-1]
'''

CONFIG = """\
minWorkers: 1
maxWorkers: 1
batchSize: 8
maxBatchDelay: 2
neuron_lstm:
  model: {{args: {{hidden: {hidden}}}}}
  inputs:
    ids: {{dtype: int64, shape: [batch, time]}}
  lengths: lengths
  outputs: [logits, final]
  buckets: {{batch: {batch}, length: {length}, longest: {longest}}}
  backend: {backend}
"""


@dataclass(frozen=True)
class Project:
    """A folder with model.py, weights.pt and model-config.yaml; its commands have their own `temporary`."""

    folder: Path
    temporary: Path

    def configure(
        self,
        backend: str = "eager",
        hidden: int = 6,
        batch: Sequence[int] = (1, 2),
        length: Sequence[int] = (2, 4),
        longest: int | None = None,
    ) -> None:
        facts = {"batch": list(batch), "length": list(length), "longest": longest or length[-1]}
        (self.folder / "model-config.yaml").write_text(CONFIG.format(backend=backend, hidden=hidden, **facts))

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1", "COLUMNS": "120", **more}

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )

    def archive(self, *more: str, handler: str = "neuron_lstm", **env: str) -> subprocess.CompletedProcess[str]:
        command = ["torch-model-archiver", *self.flags(), "--handler", handler, *more]
        if env:
            return self.run(*command, **env)
        return warm_archiver.run(command, self.folder, self.environment())

    def flags(self) -> list[str]:
        words = "--model-name tiny --version 1.0 --model-file model.py --serialized-file weights.pt"
        return [*words.split(), "--config-file", "model-config.yaml"]

    def listing(self) -> set[str]:
        return {str(path) for root in (self.folder, self.temporary) for path in root.rglob("*")}


Packaged = tuple[int, str, str]
Package = Callable[..., Packaged]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    folder, temporary = tmp_path / "project", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    made = Project(folder, temporary)
    (folder / "model.py").write_text(MODEL)
    save_weights(made)
    made.configure()
    return made


@pytest.fixture
def package(project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Package:
    monkeypatch.delitem(sys.modules, "model", raising=False)  # of an archive that an earlier test served
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("TMPDIR", str(project.temporary))
    monkeypatch.setattr("tempfile.tempdir", str(project.temporary))

    def run(*more: str) -> Packaged:
        words = [word for word in more if word != "--json"]
        flags = model_archiver.parse(
            [*project.flags(), "--handler", "neuron_lstm", "--export-path", str(project.folder), *words]
        )
        code = archive_command.archive(flags, model_archiver.manifest_json(flags), as_json="--json" in more)
        return code, *capfd.readouterr()

    return run


def save_weights(project: Project, hidden: int = 6) -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(11, 5), "lstm": torch.nn.LSTM(5, hidden)})
    layers["head"] = torch.nn.Linear(hidden, 3)
    torch.save(layers.state_dict(), project.folder / "weights.pt")
