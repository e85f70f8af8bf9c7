"""The additions of CONTRIBUTING, each made in a copy of the repository and run, in the stated files."""

from __future__ import annotations

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
        return self.lstm(x.unsqueeze(-1))[0]
"""
CONFIG = """
neuron_lstm:
  inputs: {x: {dtype: float32, shape: [batch, time]}}
  buckets: {batch: [1, 2], length: [4]}
  backend: %s
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

from dataclasses import dataclass

from .request import FormatContext, InferenceRequest, read_sequence


@dataclass(frozen=True)
class CsvFormat:
    """One sequence as text/csv."""

    name = "CSV"
    parses_json = False
    response_types = ()
    context: FormatContext

    def matches(self, value):
        return value.content_type == "text/csv"

    def decode(self, value):
        text = value.value if isinstance(value.value, str) else bytes(value.value).decode()
        numbers = [float(number) for number in text.split(",")]
        inputs = {self.context.only_input("a CSV body"): numbers}
        return InferenceRequest((read_sequence(inputs, self.context.manifest),), self)

    def encode(self, request, outputs, session=None):
        return ",".join(str(tensor.numel()) for tensor in outputs[0]).encode(), "text/csv"

    def encode_error(self, error, value):
        return None
'''
COMMAND = '''
"""Example command."""


def add_to(commands):
    """Add the command to the parser."""
    commands.add_parser("example", help="say hello").set_defaults(run=lambda options: print("hello"))
'''

PREDICT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from worker import loaded, predict, request
from pathlib import Path
with loaded(Path(sys.argv[2])) as service:
    (response,) = predict(service, [request(sys.argv[3].encode(), sys.argv[4])])
print(json.dumps([response.status, response.body.decode()]))
"""


@dataclass(frozen=True)
class Edit:
    """A new file, or text inserted before a line of an existing one."""

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


ADDITIONS: dict[str, tuple[int, tuple[Edit, ...]]] = {
    "a backend": (
        2,
        (
            Edit("backends/example.py", BACKEND),
            Edit(
                "backends/registry.py",
                '    "example": EngineSpec("example", "Example", files=("example.py", "eager.py", *CPU_FILES)),\n',
                before='    "eager": EngineSpec(\n',
            ),
        ),
    ),
    "a YAML key": (
        3,
        (
            Edit(
                "config/schema.py",
                '    owner: str | None = None\n    """Team that answers for the model."""\n',
                before='    placement: Literal["cores"] | None = None\n',
            ),
            Edit(
                "config/manifest.py",
                '    owner: str | None = None\n    """Team that answers for the model."""\n',
                before="    weights: RelativePath | None = None\n",
            ),
            Edit(
                "archiver_ext/evaluation/manifest_builder.py",
                "        owner=config.owner,\n",
                before="        placement=config.placement,\n",
            ),
        ),
    ),
    "a request format": (
        2,
        (
            Edit("handlers/formats/csv.py", FORMAT),
            Edit(
                "handlers/formats/__init__.py",
                "from .csv import CsvFormat\n",
                before="from .custom import ",
            ),
            Edit("handlers/formats/__init__.py", "CsvFormat, ", before="NpyFormat, V2Format, V1Format, PlainFormat)"),
        ),
    ),
    "a command": (
        2,
        (
            Edit("archiver_ext/commands/example.py", COMMAND),
            Edit("archiver_ext/commands/__init__.py", '    "example",\n', before='    "schema",\n'),
        ),
    ),
}


@dataclass(frozen=True)
class Checkout:
    """A copy of the repository's package, and a project to package with it."""

    root: Path
    project: Path

    def run(self, *arguments: str) -> str:
        """Run Python on the copy. Returns the standard output."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def command(self, *arguments: str) -> str:
        return self.run("-m", f"{PACKAGE}.archiver_ext.cli", *arguments)

    def archive(self, backend: str = "eager", more: str = "") -> Path:
        """Package the project. Returns the archive's folder."""
        (self.project / "model-config.yaml").write_text(CONFIG % backend + more)
        flags = "--model-name m --version 1 --model-file model.py --serialized-file weights.pt"
        self.command("archive", *flags.split(), "--config-file", "model-config.yaml", "--archive-format", "no-archive")
        return self.project / "m"

    def predict(self, folder: Path, body: str, content_type: str) -> Sequence[object]:
        """The status and body of one request, by TorchServe's own worker."""
        support = str(ROOT / "tests" / "support")
        answer: list[object] = json.loads(self.run("-c", PREDICT, support, str(folder), body, content_type))
        return answer


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """The package's folders and links, and a small model."""
    root, project = tmp_path / "repository", tmp_path / "project"
    project.mkdir()
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "src", root / "src", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "model.py").write_text(MODEL)
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(1, 2)
    torch.save({f"lstm.{name}": tensor for name, tensor in lstm.state_dict().items()}, project / "weights.pt")
    return Checkout(root, project)


def add(checkout: Checkout, name: str) -> None:
    """Make the edits of an addition, in no more files than CONTRIBUTING says."""
    places, edits = ADDITIONS[name]
    assert len({edit.file for edit in edits}) == places
    for edit in edits:
        edit.apply(checkout.root)


def test_a_backend_is_two_places(checkout: Checkout) -> None:
    """It packages, travels in the archive without the other engines, and serves."""
    add(checkout, "a backend")

    folder = checkout.archive(backend="example")

    assert json.loads((folder / "variants.json").read_text())["backend"] == "example"
    assert (folder / PACKAGE / "backends" / "example.py").is_file()
    assert checkout.predict(folder, "[1.0, 2.0]", "application/json")[0] == 200


def test_a_yaml_key_is_three_places(checkout: Checkout) -> None:
    """It is in the schema, checked when read, and written into the manifest, which the serving half reads."""
    add(checkout, "a YAML key")

    folder = checkout.archive(more="  owner: speech\n")

    assert json.loads((folder / "variants.json").read_text())["owner"] == "speech"
    assert '"Team that answers for the model."' in checkout.command("schema")
    assert checkout.predict(folder, "[1.0]", "application/json")[0] == 200


def test_a_request_format_is_two_places(checkout: Checkout) -> None:
    """A body of the new type is decoded, answered in it, and refused as its own."""
    add(checkout, "a request format")

    folder = checkout.archive()

    assert checkout.predict(folder, "1,2,3", "text/csv") == [200, "6"]
    assert checkout.predict(folder, "1,2,3,4,5", "text/csv")[0] == 413
    assert checkout.predict(folder, "[1.0]", "application/json")[0] == 200


def test_a_command_is_two_places(checkout: Checkout) -> None:
    """It is in the help and runs."""
    add(checkout, "a command")

    assert "say hello" in checkout.command("--help")
    assert checkout.command("example") == "hello\n"


def test_the_page_says_so() -> None:
    """CONTRIBUTING has a row for each addition, which names every file of it."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")

    for name, (_, edits) in ADDITIONS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        named = {edit.file.replace("/example.py", "/NAME.py").replace("/csv.py", "/NAME.py") for edit in edits}
        assert {file for file in named if f"`{file}`" not in row} == set()
