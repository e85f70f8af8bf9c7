"""The additions of CONTRIBUTING, all made in one copy of the repository and run, in the stated files."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from import_rules import FOLDERS, PACKAGE

ROOT = Path(__file__).parents[1]

MODEL = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(1, 2, batch_first=True)

    def forward(self, x):
        small = x.tanh()[:, :, None] / 4
        return torch.linalg.matrix_exp(small * small.mT) @ self.lstm(x.unsqueeze(-1))[0]
"""
CONFIG = """
neuron_lstm:
  inputs: {x: {dtype: float32, shape: [batch, time]}}
  buckets: {batch: [1, 2], length: [4]}
  backend: example
  owner: speech
"""

BACKEND = '''
"""Example backend: eager mode by another name."""

from .eager import Eager


class Example(Eager):
    """An engine of its own name."""

    name = "example"
'''
FORMAT = '''
"""Example format: numbers separated by commas, answered as the number of outputs."""

from .request import InferenceRequest, RequestFormat
from .sequences import read_sequence


class CsvFormat(RequestFormat):
    """One sequence as text/csv."""

    name = "CSV"
    reads = "body"

    def matches(self, value):
        return value.content_type == "text/csv"

    def decode(self, value):
        text = value.value if isinstance(value.value, str) else bytes(value.value).decode()
        numbers = [float(number) for number in text.split(",")]
        inputs = {self.context.only_input("a CSV body"): numbers}
        return InferenceRequest((read_sequence(inputs, self.context.manifest),), self)

    def encode(self, request, outputs, session=None):
        return ",".join(str(tensor.numel()) for tensor in outputs[0]).encode(), "text/csv"
'''
COMMAND = '''
"""Example command."""


def add_to(commands):
    """Add the command to the parser."""
    commands.add_parser("example", help="say hello").set_defaults(run=lambda options: print("hello"))
'''
RULE = '''
def matrix_exponential(batch, call):
    """Return the exponential of each row's own matrix; that of zeros is apart from it."""
    value = call.value()
    return call.result(call.run(self=batch.masked(value, [value.rank - 2, value.rank - 1], 0)))


'''.lstrip()

PREDICT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from worker import loaded, predict, request
from pathlib import Path
with loaded(Path(sys.argv[2])) as service:
    responses = predict(service, [request(body.encode(), kind) for body, kind in json.loads(sys.argv[3])])
print(json.dumps([[response.status, response.body.decode()] for response in responses]))
"""


@dataclass(frozen=True)
class Edit:
    file: str
    text: str
    before: str = ""

    def apply(self, root: Path) -> None:
        path = root / self.file
        if not self.before:
            assert not path.exists()
            path.write_text(self.text.lstrip())
            return
        found = path.read_text("utf-8")
        assert found.count(self.before) == 1, f"{self.file}: {self.before}"
        path.write_text(found.replace(self.before, self.text + self.before), "utf-8")


_OWNER = '    owner: %s = None\n    """Team that answers for the model."""\n'
_MATMUL = '        (contraction.matmul, "matmul mm bmm mv dot"),\n'
ADDITIONS: dict[str, tuple[Edit, ...]] = {
    "a backend": (
        Edit("backends/example.py", BACKEND),
        Edit("backends/registry.py", '    "example": EngineSpec("example", "Example"),\n', '    "eager": EngineSpec('),
    ),
    "a YAML key": (
        Edit("config/schema.py", _OWNER % "str | None", '    placement: Literal["cores"] | None = None\n'),
        Edit("config/manifest.py", _OWNER % "Optional[str]", "    weights: Optional[RelativePath] = None\n"),
        Edit(
            "archiver_ext/evaluation/manifest_builder.py",
            "        owner=config.owner,\n",
            "        placement=config.placement,\n",
        ),
    ),
    "a request format": (
        Edit("handlers/formats/csv.py", FORMAT),
        Edit("handlers/formats/__init__.py", "from .csv import CsvFormat\n", "from .custom import "),
        Edit("handlers/formats/__init__.py", "CsvFormat, ", "NpyFormat, V2Format, V1Format, PlainFormat)"),
    ),
    "a command": (
        Edit("archiver_ext/commands/example.py", COMMAND),
        Edit("archiver_ext/commands/__init__.py", '    "example",\n', '    "schema",\n'),
    ),
    "an operator's rule": (
        Edit("lowering/ragged/contraction_rules.py", RULE, "def matmul("),
        Edit("lowering/ragged/rules.py", '        (contraction.matrix_exponential, "linalg_matrix_exp"),\n', _MATMUL),
    ),
}


@dataclass(frozen=True)
class Checkout:
    root: Path
    project: Path

    def run(self, *arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=self.project, env=environment, capture_output=True, text=True, check=False, timeout=110
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command(self, *arguments: str) -> str:
        return self.run("-m", f"{PACKAGE}.archiver_ext.cli", *arguments)

    def archive(self) -> Path:
        flags = "--model-name m --version 1 --model-file model.py --serialized-file weights.pt"
        self.command("archive", *flags.split(), "--config-file", "model-config.yaml", "--archive-format", "no-archive")
        return self.project / "m"

    def predict(self, folder: Path, requests: Sequence[tuple[str, str]]) -> list[list[object]]:
        support = str(ROOT / "tests" / "support")
        told = self.run("-c", PREDICT, support, str(folder), json.dumps(list(requests)))
        answers: list[list[object]] = json.loads(told)
        return answers


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The package's folders and links with all additions, and a small model that uses them."""
    folder = tmp_path_factory.mktemp("additions")
    root, project = folder / "repository", folder / "project"
    project.mkdir()
    for package in FOLDERS:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "src", root / "src", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for edits in ADDITIONS.values():
        for edit in edits:
            edit.apply(root)
    (project / "model.py").write_text(MODEL)
    (project / "model-config.yaml").write_text(CONFIG)
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(1, 2)
    torch.save({f"lstm.{name}": tensor for name, tensor in lstm.state_dict().items()}, project / "weights.pt")
    return Checkout(root, project)


@pytest.fixture(scope="module")
def archive(checkout: Checkout) -> Path:
    return checkout.archive()


@pytest.fixture(scope="module")
def answers(checkout: Checkout, archive: Path) -> list[list[object]]:
    csv = ("1,2,3", "text/csv"), ("1,2,3,4,5", "text/csv")
    return checkout.predict(archive, [*csv, ("[1.0, 2.0]", "application/json")])


@pytest.mark.ci
def test_a_backend_packages_and_serves(archive: Path, answers: list[list[object]]) -> None:
    assert json.loads((archive / "variants.json").read_text())["backend"] == "example"  # else no rule
    assert (archive / PACKAGE / "backends" / "example.py").is_file()
    assert not (archive / PACKAGE / "backends" / "onnxruntime.py").exists()
    assert answers[2][0] == 200


@pytest.mark.ci
def test_a_yaml_key_is_in_the_schema_and_in_the_manifest(checkout: Checkout, archive: Path) -> None:
    assert json.loads((archive / "variants.json").read_text())["owner"] == "speech"
    assert '"Team that answers for the model."' in checkout.command("schema")


def test_a_request_format_is_decoded_and_refused_as_its_own(answers: list[list[object]]) -> None:
    assert answers[0] == [200, "6"]
    assert answers[1][0] == 413


def test_a_command_is_in_the_help_and_runs(checkout: Checkout) -> None:
    assert "say hello" in checkout.command("--help")
    assert checkout.command("example") == "hello\n"


def test_the_page_says_so() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")

    for name, edits in ADDITIONS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        named = {edit.file.replace("/example.py", "/NAME.py").replace("/csv.py", "/NAME.py") for edit in edits}
        assert {file for file in named if f"`{file}`" not in row} == set()
