"""User projects of the contract tests: small models with their configurations and packaging.

This file does not import the package: projects are files and a command line, like those of users.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import warm_archiver
from python_path import python_path
from torch import nn

HERE = Path(__file__).parent
DATA = HERE / "data"
ARCHIVES = DATA / "archives"
DOUBLES = HERE.parent / "support" / "doubles"
"""Doubles of AWS's packages."""
ARCHIVER = Path(sys.executable).with_name("torch-model-archiver")

_HEAD = """\
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


"""
TAGGER = (
    _HEAD
    + '''\
class Tagger(nn.Module):
    """Scores of each id, and of the whole sequence by the states of both directions."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(8, 3)
        self.label = nn.Linear(8, 3)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        packed, (h, _) = self.lstm(packed)
        y, _ = pad_packed_sequence(packed, batch_first=True)
        return self.tag(y), self.label(torch.cat([h[0], h[1]], 1))
'''
)
SPEECH = (
    _HEAD
    + '''\
class Speech(nn.Module):
    """An LSTM whose initial state follows from the speaker: scores of each frame, and of all by the last state."""

    def __init__(self):
        super().__init__()
        self.begin = nn.Linear(2, 4)
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)
        self.end = nn.Linear(4, 2)

    def forward(self, frames, speaker, lengths):
        h = torch.tanh(self.begin(speaker))[None]
        packed = pack_padded_sequence(frames, lengths, batch_first=True, enforce_sorted=False)
        packed, (h, _) = self.lstm(packed, (h, torch.zeros_like(h)))
        y, _ = pad_packed_sequence(packed, batch_first=True)
        return self.out(y), torch.softmax(self.end(h[-1]), 1)
'''
)
STREAM = (
    _HEAD
    + '''\
class Stream(nn.Module):
    """Scores of each id by a GRU that reads forwards."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 4)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return self.out(y)
'''
)
MEAN = (
    _HEAD
    + '''\
class Mean(nn.Module):
    """The mean over all of time, without lengths: padding would change it."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, frames):
        return self.lstm(frames)[0].mean(1)
'''
)
MEDIAN = MEAN.replace("Mean", "Median").replace("mean(1)", "median(1).values").replace("The mean", "The median")

_IDS = "inputs: {ids: {dtype: int64, shape: [batch, time]}}\nlengths: lengths\n"
_TAGGER = f"{_IDS}outputs: [tags, label]\n"
_SPEECH = """
inputs:
  frames: {dtype: float32, shape: [batch, time, 3], pad_value: 0.5}
  speaker: {dtype: float32, shape: [batch, 2]}
lengths: lengths
outputs: [scores, ending]
"""
_STREAM = f"{_IDS}outputs: [scores]\nbuckets: {{batch: [2], length: [4], longest: 8}}\n"
LABELS = '{"0": "low", "1": "middle", "2": "high", "3": "highest"}\n'
KERNEL = '''\
def choose(length, lengths):
    """Short sequences in the shortest bucket, all others in the longest."""
    return 0 if length <= lengths[0] else len(lengths) - 1
'''
CODEC = '''\
class Words:
    """Ids in words, apart by blanks; it fails on the last id of the vocabulary."""

    content_type = "text/plain"

    def decode(self, body, content_type):
        return {"ids": [int(word) for word in body.decode().split()]}

    def encode(self, outputs, inputs):
        if 19 in inputs["ids"].tolist():
            raise KeyError(19)
        return " ".join(str(int(row.argmax())) for row in outputs["tags"]).encode()
'''


@dataclass(frozen=True)
class Project:
    """A model's source, the lines below `neuron_lstm:`, and the files given beside them."""

    model: str
    block: str
    extra: Mapping[str, str] = field(default_factory=dict)
    doubles: bool = False
    """Whether the doubles of AWS's packages must be importable."""
    archive: bool = False
    """Whether an archive of it is kept in data/archives."""

    @property
    def engine(self) -> str:
        """The engine that it is compiled for."""
        return self.block.partition("backend: ")[2].split()[0]


_SEQUENCE = "buckets: {batch: [1, 2], length: [4, 8]}\n"
_ONE = "buckets: {batch: [2], length: [6]}\n"
PROJECTS = {
    "tagger_eager": Project(
        TAGGER,
        f"{_TAGGER}{_SEQUENCE}backend: eager\noverflow: truncate\nthreads: 1\nplacement: cores\n",
        archive=True,
    ),
    "speech_native": Project(
        SPEECH,
        f"{_SPEECH}buckets: {{batch: [1, 2], length: [4], longest: 16}}\nbackend: native\n",
        archive=True,
    ),
    "kernel_openvino": Project(
        TAGGER,
        f"{_TAGGER}buckets: {{batch: [2], length: [4, 8], kernel: 'my_kernel:choose'}}\nbackend: openvino\n"
        "tolerance: {atol: 1.0e-4}\ncodec: my_codec:Words\n",
        {"my_kernel.py": KERNEL, "my_codec.py": CODEC},
        archive=True,
    ),
    "divided_onnxruntime": Project(
        SPEECH,
        f"{_SPEECH}buckets: {{batch: [2], length: [4], longest: 16}}\nbackend: onnxruntime\n"
        "partitioner_config: {ops_to_partition: ['aten::linear']}\n",
        archive=True,
    ),
    "tagger_inductor": Project(TAGGER, f"{_TAGGER}{_ONE}backend: inductor\n", archive=True),
    "speech_neuronx": Project(
        SPEECH,
        f"{_SPEECH}buckets: {{batch: [2], length: [4], longest: 16}}\nbackend: neuronx\ncompiler_args: --target inf2\n",
        doubles=True,
        archive=True,
    ),
    "tagger_neuron": Project(
        TAGGER,
        f"{_TAGGER}{_ONE}backend: neuron\npartitioner_config: {{}}\nprecision: bfloat16\n",
        doubles=True,
        archive=True,
    ),
    "stream_disk": Project(
        STREAM, f"{_STREAM}backend: onnxruntime\nstreaming: {{idle_seconds: 60, max_sessions: 4}}\n", archive=True
    ),
    "stream_redis": Project(
        STREAM,
        f"{_STREAM}backend: eager\nstreaming: {{store: redis, redis: {{url: 'rediss://127.0.0.1:1/3', username: us, "
        "password_env: SECRET, ca_file: ca.pem, timeout_seconds: 0.5}, max_bytes: 4096}\n",
    ),
    "stream_client": Project(
        STREAM,
        f"{_STREAM}backend: eager\n"
        "streaming: {store: client, key_env: STREAM_KEY, fields: {id: X-Session, step: X-Step}}\n",
    ),
    "exact_eager": Project(
        MEAN,
        "inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}\nbuckets: {batch: [2], length: [2, 4]}\n"
        "backend: eager\n",
        {"index_to_name.json": LABELS},
        archive=True,
    ),
    "median_eager": Project(
        MEDIAN,
        "inputs: {frames: {dtype: float32, shape: [batch, time, 3]}}\nbuckets: {batch: [2], length: [2, 4]}\n"
        "backend: eager\n",
        {"index_to_name.json": LABELS},
    ),
}


def archived_names() -> list[str]:
    """The projects of which an archive is kept."""
    return [name for name, project in PROJECTS.items() if project.archive]


def write_project(name: str, folder: Path, seed: int = 0) -> nn.Module:
    """Write a project's files to a new folder, with weights of the seed; return the model in eval mode."""
    project = PROJECTS[name]
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(project.model)
    for file, text in project.extra.items():
        (folder / file).write_text(text)
    indented = "".join(f"  {line}\n" for line in project.block.strip().splitlines())
    (folder / "model-config.yaml").write_text(f"minWorkers: 1\nmaxWorkers: 1\nneuron_lstm:\n{indented}")
    model = make_model(folder / "model.py", seed)
    torch.save(model.state_dict(), folder / "weights.pt")
    return model


def make_model(file: Path, seed: int) -> nn.Module:
    """The model of a file with weights of that seed, in eval mode."""
    spec = importlib.util.spec_from_file_location(f"_contract_{file.parent.name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (kind,) = (one for one in vars(module).values() if isinstance(one, type) and issubclass(one, nn.Module))
    torch.manual_seed(seed)
    made = kind().eval()
    assert isinstance(made, nn.Module)
    return made


def archive_words(name: str, store: Path) -> list[str]:
    """The options of torch-model-archiver for a project, for a call in its folder."""
    extra = ["--extra-files", ",".join(PROJECTS[name].extra)] if PROJECTS[name].extra else []
    return [
        *("--model-name", name, "--version", "1.0", "--model-file", "model.py", "--serialized-file", "weights.pt"),
        *("--handler", "neuron_lstm", "--config-file", "model-config.yaml", "--export-path", str(store), *extra),
    ]


def environment_of(name: str) -> dict[str, str]:
    """This process's environment, in which the doubles can be imported if the project needs them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for variable in ("NEURON_RT_NUM_CORES", "NEURON_RT_VISIBLE_CORES", "NEURON_DOUBLE_CORES"):
        environment.pop(variable, None)
    if PROJECTS[name].doubles:
        environment["PYTHONPATH"] = python_path(DOUBLES)
    return environment


def run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with any result."""
    if Path(words[0]).name in warm_archiver.COMMANDS:
        return warm_archiver.run(words, folder, environment)
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


def package(name: str, work: Path, store: Path) -> nn.Module:
    """Package a project with the standard command into `store`; returns its model."""
    model = write_project(name, work / name)
    done = run([str(ARCHIVER), *archive_words(name, store)], work / name, environment_of(name))
    assert done.returncode == 0, done.stdout + done.stderr
    return model
