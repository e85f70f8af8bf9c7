"""The C++ examples: compiled and given a real archive, they answer as Python does, to the bit.

The tests need g++ and make, like packaging with inductor. The example of ONNX Runtime also needs its headers.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from archiving import archived, write_source
from safetensors.torch import load_file, save_file

from torchserve_neuron_lstm.bucketing.shapes import Bucket
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

pytestmark = [pytest.mark.xdist_group("cpp"), pytest.mark.timeout(300), pytest.mark.ci]

EXAMPLES = Path(__file__).parents[2] / "examples" / "cpp"
HEADERS = Path(os.environ.get("ONNXRUNTIME_HEADERS", "/usr/include/onnxruntime"))
BUCKET = Bucket(3, 5)

MODEL = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 4)
        self.lstm = torch.nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)
        {layers}

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        packed, (h, c) = self.lstm(packed)
        {steps}
        return pad_packed_sequence(packed, batch_first=True)[0], h[-1], c[-1]
"""
LSTM = MODEL.format(layers="pass", steps="pass")
EVERY_OPERATOR = MODEL.format(
    layers="self.gru = torch.nn.GRU(10, 4, 2, batch_first=True, bidirectional=True)\n"
    "        self.rnn = torch.nn.RNN(8, 3, batch_first=True, nonlinearity='relu')\n"
    "        self.exact = torch.nn.LSTM(3, 3, batch_first=True, bidirectional=True).double()",
    steps="packed, _ = self.rnn(self.gru(packed)[0])\n"
    "        y, counts = pad_packed_sequence(packed, batch_first=True)\n"
    "        y = y * torch.tensor([0.5, -1.25, 3.0])\n"
    "        packed = pack_padded_sequence(y.double(), counts, batch_first=True, enforce_sorted=False)\n"
    "        packed, (h, c) = self.exact(packed)",
)
BLOCK = """
inputs: {{ids: {{dtype: int64, shape: [batch, time]}}}}
lengths: lengths
outputs: [y, h, c]
buckets: {{batch: [{batch}], length: [{length}]}}
backend: {backend}
"""


def make_archive(folder: Path, model: str, backend: str, *, safetensors: bool = False) -> Path:
    folder.mkdir()
    (folder / "given.py").write_text(model)
    block = BLOCK.format(backend=backend, batch=BUCKET.batch, length=BUCKET.length)
    source = write_source(folder / "source", folder / "given.py", block)
    save_file(dict(source.model.state_dict()), source.folder / "weights.safetensors")
    more = ["--serialized-file", "weights.safetensors"] if safetensors else []
    archived(source, "small", folder, more)
    return folder / "small.mar"


def unzipped(archive: Path, into: Path) -> Path:
    shutil.unpack_archive(archive, into, "zip")
    return into


def inputs() -> dict[str, torch.Tensor]:
    """Three rows of 5, 1 and 4 timesteps, with arbitrary valid ids in their padding."""
    torch.manual_seed(1)
    return {"ids": torch.randint(11, BUCKET), "sequence_lengths": torch.tensor([5, 1, 4])}


def python_answers(folder: Path) -> list[np.ndarray]:
    variants = load_archive(folder, threads=1)
    return [answer.numpy() for answer in variants.run("sequence", BUCKET, list(inputs().values()))]


def run(
    program: Path, first: Sequence[str], tensors: Mapping[str, torch.Tensor], scratch: Path
) -> tuple[subprocess.CompletedProcess[str], list[np.ndarray]]:
    answers = scratch / "answers"
    answers.mkdir()
    for name, tensor in tensors.items():
        np.save(scratch / f"{name}.npy", tensor.numpy())
    files = [f"{name}={scratch / name}.npy" for name in tensors]
    command = [str(program), *first, str(answers), *files]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False, timeout=60
    )
    return done, [np.load(answers / f"{index}.npy") for index in range(len(list(answers.iterdir())))]


def make(target: str, folder: Path) -> Path:
    words = f"--silent --jobs=2 OUT={folder} CXXFLAGS=-O0 {folder / target}"
    command = ["make", "-C", str(EXAMPLES), f"PYTHON={sys.executable}", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder / target


def export(script: str, archive: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), str(archive), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def assert_same(theirs: Sequence[np.ndarray], ours: Sequence[np.ndarray]) -> None:
    assert len(theirs) == len(ours)
    for their, our in zip(theirs, ours, strict=True):
        assert (their.shape, their.dtype) == (our.shape, our.dtype)
        assert their.tobytes() == our.tobytes()


@pytest.fixture(scope="module")
def run_inductor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("run_inductor", tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked archive with every operator that a program may call back."""
    folder = tmp_path_factory.mktemp("inductor")
    return unzipped(make_archive(folder / "made", EVERY_OPERATOR, "inductor"), folder / "unpacked")


@pytest.fixture(scope="module")
def weights(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    done = export("export_weights.py", compiled, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.long
def test_a_compiled_bucket_answers_as_in_python(
    run_inductor: Path, compiled: Path, weights: Path, tmp_path: Path
) -> None:
    program = compiled / "programs" / "inductor" / "sequence" / "b3_t5"
    calls = json.loads((program / "program.json").read_text())["nodes"]
    done, answers = run(run_inductor, [str(program), str(weights)], inputs(), tmp_path)

    assert done.returncode == 0, done.stderr
    assert (compiled / "programs" / "constants.pt").is_file()
    assert {"neuron_lstm::rnn", "neuron_lstm::lstm"} <= {call["node"]["target"] for call in calls}
    assert_same(answers, python_answers(compiled))


@pytest.mark.long
def test_another_shape_is_refused(run_inductor: Path, compiled: Path, weights: Path, tmp_path: Path) -> None:
    """Compiled code would run it and give a wrong answer."""
    program = compiled / "programs" / "inductor" / "sequence" / "b3_t5"
    wrong = inputs() | {"ids": torch.zeros(3, 6, dtype=torch.int64)}
    done, answers = run(run_inductor, [str(program), str(weights)], wrong, tmp_path)

    assert (done.returncode, answers) == (1, [])
    assert done.stderr == "error: 'ids' is int64 [3, 6], but the program was compiled for int64 [3, 5]\n"


@pytest.mark.long
def test_other_weights_are_refused(run_inductor: Path, compiled: Path, weights: Path, tmp_path: Path) -> None:
    """The library would read beyond them, or at an invalid address."""
    program = compiled / "programs" / "inductor" / "sequence" / "b3_t5"
    tensors = load_file(weights)
    name = "lstm.weight_ih_l0"
    save_file({**tensors, name: tensors[name][:4].clone()}, tmp_path / "short.safetensors")
    save_file({other: tensor for other, tensor in tensors.items() if other != name}, tmp_path / "fewer.safetensors")
    (tmp_path / "again").mkdir()
    short, answers = run(run_inductor, [str(program), str(tmp_path / "short.safetensors")], inputs(), tmp_path)
    fewer, none = run(run_inductor, [str(program), str(tmp_path / "fewer.safetensors")], inputs(), tmp_path / "again")

    assert (short.returncode, answers, fewer.returncode, none) == (1, [], 1, [])
    assert f"'{name}' is float32 [4, 4], but the program was compiled for float32 [20, 4]" in short.stderr
    assert fewer.stderr == f"error: the weights have no '{name}'\n"


def exported(archive: Path, target: Path) -> Path:
    done = export("export_onnx.py", archive, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.long
def test_a_graph_with_its_weights_answers_in_openvino(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "made", LSTM, "openvino", safetensors=True)
    graph = exported(archive, tmp_path / "small.onnx")
    done, answers = run(make("run_openvino", tmp_path / "build"), [str(graph)], inputs(), tmp_path)

    assert done.returncode == 0, done.stderr
    assert_same(answers, python_answers(unzipped(archive, tmp_path / "unpacked")))


@pytest.fixture(scope="module")
def for_onnxruntime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("onnxruntime") / "made", LSTM, "onnxruntime")


def test_a_graph_with_its_weights_needs_no_other_file(for_onnxruntime: Path, tmp_path: Path) -> None:
    import onnxruntime

    graph = exported(for_onnxruntime, tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    answers = session.run(None, {name: tensor.numpy() for name, tensor in inputs().items()})

    assert_same(answers, python_answers(unzipped(for_onnxruntime, tmp_path / "unpacked")))


@pytest.mark.skipif(not HEADERS.is_dir(), reason="needs the headers of ONNX Runtime (libonnxruntime-dev)")
def test_a_graph_with_its_weights_answers_in_onnxruntime(for_onnxruntime: Path, tmp_path: Path) -> None:
    """The library is the wheel's; the headers are from another package."""
    graph = exported(for_onnxruntime, tmp_path / "small.onnx")
    done, answers = run(make("run_onnxruntime", tmp_path / "build"), [str(graph)], inputs(), tmp_path)

    assert done.returncode == 0, done.stderr
    assert_same(answers, python_answers(unzipped(for_onnxruntime, tmp_path / "unpacked")))


@pytest.mark.long
def test_an_archive_without_a_graph_is_refused(compiled: Path, tmp_path: Path) -> None:
    done = export("export_onnx.py", compiled, tmp_path / "small.onnx")

    assert done.returncode == 1
    assert done.stderr == "the archive was packaged with backend inductor, which has no ONNX graph\n"
