"""A backend of another distribution, installed with pip, serves like ours. docs/backends.md shows it."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from archiving import Source, archive, archived, write_source
from bare_host import can_import, make_bare_host
from python_path import python_path
from recurrent import Case, Recurrent, exported, largest_error, ragged_batch

from torchserve_neuron_lstm.archiver_ext.archive.carried_files import carried_files
from torchserve_neuron_lstm.archiver_ext.evaluation.selection import candidate_engines
from torchserve_neuron_lstm.backends import registry
from torchserve_neuron_lstm.backends.exported_tensors import weights_of
from torchserve_neuron_lstm.backends.interface import Backend, CompileError, CompileSettings, LoadError
from torchserve_neuron_lstm.backends.signature import WrongInput
from torchserve_neuron_lstm.config.load import parse_config

pytestmark = [pytest.mark.xdist_group("third party"), pytest.mark.timeout(180), pytest.mark.ci]

PACKAGE = Path(__file__).parents[1] / "support" / "third_party_backend"
MODEL = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 5)
        self.lstm = torch.nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(12, 3)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        packed, (state, _) = self.lstm(packed)
        return self.head(pad_packed_sequence(packed, batch_first=True)[0]), state[-1]
"""
BLOCK = """
inputs: {ids: {dtype: int64, shape: [batch, time]}}
lengths: lengths
outputs: [logits, state]
buckets: {batch: [1, 4], length: [3, 8]}
"""
SERVE = """
import json, sys
from pathlib import Path
import torch
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

rows = [torch.tensor(row) for row in json.loads(sys.argv[1])]
variants = load_archive(Path.cwd(), 1)
lengths = [len(row) for row in rows]
answers, _ = variants.run_plan(variants.plan(lengths), [(row,) for row in rows], lengths)
print(json.dumps([[tensor.tolist() for tensor in answer] for answer in answers]))
"""
ROWS = [[1, 2, 3, 4, 5, 6, 7, 8], [9], [10, 0, 3], [4, 4]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed it, without an index."""
    folder = tmp_path_factory.mktemp("third-party")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    words = "--quiet --no-index --no-deps --no-build-isolation --disable-pip-version-check --no-compile --target"
    command = [sys.executable, "-m", "pip", "install", *words.split(), str(folder / "site"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("user")
    (folder / "given.py").write_text(MODEL)
    return write_source(folder / "source", folder / "given.py", f"{BLOCK}backend: numpy")


@pytest.fixture(scope="module")
def unpacked(site: Path, source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its archive on a host, made with the stock command."""
    folder = tmp_path_factory.mktemp("archive")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(site))
        archived(source, "tagger", folder)
    with zipfile.ZipFile(folder / "tagger.mar") as file:
        file.extractall(folder / "host")
    return folder / "host"


@pytest.fixture
def engine(site: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.syspath_prepend(site)
    return registry.get_backend("numpy")


def serve(python: Path, unpacked: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Load an archive and answer ROWS in another environment, with these folders of packages."""
    return subprocess.run(
        [str(python), "-c", SERVE, json.dumps(ROWS)],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (unpacked, *paths)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@torch.no_grad()
def test_its_archive_answers_as_eager_does(site: Path, source: Source, unpacked: Path, tmp_path: Path) -> None:
    done = serve(make_bare_host(tmp_path / "host"), unpacked, site)

    assert done.returncode == 0, done.stderr
    for row, answers in zip(ROWS, json.loads(done.stdout), strict=True):
        logits, state = source.model(torch.tensor([row]), torch.tensor([len(row)]))
        torch.testing.assert_close(torch.tensor(answers[0]), logits[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.tensor(answers[1]), state[0], atol=1e-5, rtol=1e-5)


def test_a_host_without_the_distribution_refuses_and_names_it(unpacked: Path, tmp_path: Path) -> None:
    python = make_bare_host(tmp_path / "host")
    assert not can_import(python, "neuron_lstm_numpy")
    done = serve(python, unpacked)

    assert done.returncode == 1
    assert "neuron-lstm-numpy" in done.stderr.splitlines()[-1]
    assert "1.0" in done.stderr.splitlines()[-1]


def test_the_archive_carries_no_engine_of_ours(unpacked: Path) -> None:
    package = unpacked / "torchserve_neuron_lstm"

    assert {file.relative_to(package) for file in package.rglob("*.py")} == set(carried_files("numpy"))
    modules = [f"{spec.module.replace('.', '/')}.py" for spec in registry.ENGINES.values()]
    assert not any((package / "backends" / module).is_file() for module in modules)
    assert list(unpacked.rglob("neuron_lstm_numpy*")) == []


@pytest.mark.usefixtures("engine")
def test_auto_leaves_it_alone() -> None:
    config = parse_config(f"neuron_lstm:{BLOCK}".replace("\n", "\n  "), "model-config.yaml")
    engines, dropped = candidate_engines(config)

    assert "numpy" in registry.backend_names()
    assert "numpy" not in {engine.name for engine in engines} | {drop.backend for drop in dropped}


def test_a_key_that_it_does_not_take_is_refused(
    site: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(site))
    folder = tmp_path / "source"
    shutil.copytree(source.folder, folder)
    with (folder / "model-config.yaml").open("a") as file:
        file.write("  compiler_workdir: work\n")
    done = archive(Source(folder, source.model), "tagger", tmp_path)

    assert done.returncode == 1
    assert "neuron_lstm.compiler_workdir: numpy does not support this option; it supports compiler_args" in done.stdout


@torch.no_grad()
@pytest.mark.parametrize(("args", "limit"), [((), 1e-5), (("--double",), 2e-7)])
def test_its_argument_changes_what_it_computes_in(
    engine: Backend, tmp_path: Path, args: tuple[str, ...], limit: float
) -> None:
    module = Recurrent(Case(layers=2, bidirectional=True)).eval()
    program = exported(module, *ragged_batch(0.0))
    engine.compile(program, None, tmp_path, CompileSettings(args=args))
    run = engine.load(tmp_path, weights_of(program), engine.host(), 1)
    x, lengths = ragged_batch(float("nan"))
    truth = [answer.float() for answer in module.double().alone(x.double(), lengths)]

    assert largest_error(run([x, lengths]), truth) <= limit


def test_what_it_cannot_compile_it_refuses(engine: Backend, tmp_path: Path) -> None:
    program = exported(Recurrent(Case("gru")).eval(), *ragged_batch(0.0))
    calls = [node for node in program.graph.nodes if node.op == "call_function"]

    assert {reason for node in calls if (reason := engine.refusal(node))} == {"numpy has no neuron_lstm.rnn.default"}
    with pytest.raises(CompileError, match=r"numpy has no neuron_lstm\.rnn\.default"):
        engine.compile(program, None, tmp_path)
    with pytest.raises(CompileError, match="only the argument --double, not --fast"):
        engine.compile(program, None, tmp_path, CompileSettings(args=("--fast",)))


def test_another_shape_is_a_wrong_input(engine: Backend, tmp_path: Path) -> None:
    program = exported(Recurrent(Case()).eval(), *ragged_batch(0.0))
    engine.compile(program, None, tmp_path)
    run = engine.load(tmp_path, weights_of(program), engine.host(), 1)
    x, lengths = ragged_batch(0.0)

    with pytest.raises(WrongInput, match="'x' is float32"):
        run([x[:, :, :2], lengths])


def test_another_byte_order_is_refused(engine: Backend, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="-endian machine: package the model again on this one"):
        engine.load(tmp_path, {}, {"byteorder": "middle"}, 1)
