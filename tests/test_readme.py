"""The README's example works: its files are written, its commands run, its requests sent."""

import doctest
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from archiving import model_class
from rest import assert_close, post
from shown import blocks, commands
from torchserve_process import TorchServe, serving

from torchserve_neuron_lstm.bucketing.cost import CostModel
from torchserve_neuron_lstm.bucketing.planner import make_planner
from torchserve_neuron_lstm.bucketing.shapes import BucketGrid
from torchserve_neuron_lstm.config.load import load_config
from torchserve_neuron_lstm.handlers.responses import STATUSES

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FILES = ("model.py", "weights.py", "model-config.yaml", "client.py")


def files(markdown: str) -> dict[str, str]:
    """The blocks that are files: their first line is a comment with the name."""
    named = {text.splitlines()[0].removeprefix("# "): text for text in blocks(markdown)}
    return {name: text for name, text in named.items() if name in FILES}


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tour")
    markdown = README.read_text()
    for name, text in files(markdown).items():
        (folder / name).write_text(text)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in [*commands(markdown, "python")[-1:], *commands(markdown, "torch-model-archiver")]:
        subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def tour_server(tour: Path) -> Iterator[TorchServe]:
    with serving(tour, {"tagger": "tagger.mar"}) as running:
        yield running


def test_the_readme_shows_every_file_and_the_two_commands() -> None:
    markdown = README.read_text()
    assert set(files(markdown)) == set(FILES)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {words[1] for words in commands(markdown, "make")} == {"demo", "test"} <= set(targets)


def test_the_configuration_of_the_readme_is_valid(tmp_path: Path) -> None:
    (tmp_path / "model-config.yaml").write_text(files(README.read_text())["model-config.yaml"])
    load_config(tmp_path / "model-config.yaml")


def test_every_json_of_the_tables_is_json() -> None:
    rows = re.findall(r"^\| `([\[{][^`]*)` \|", README.read_text(), re.MULTILINE)
    assert len(rows) >= 4
    for row in rows:
        json.loads(row)


def test_refusals_of_the_table_have_the_statuses_of_the_code() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (`[^|]*) \|", README.read_text(), re.MULTILINE)
    named = {kind: int(status) for status, kinds in rows for kind in re.findall(r"`(\w+)`", kinds)}
    assert len(named) >= 13
    assert named == {kind: STATUSES[kind] for kind in named}


@pytest.mark.ci
@pytest.mark.e2e
@pytest.mark.timeout(400)
@pytest.mark.xdist_group("e2e")
def test_the_tour_of_the_readme_ends_in_the_eager_answer(tour: Path, tour_server: TorchServe) -> None:
    model = model_class(tour / "model.py")()
    model.load_state_dict(torch.load(tour / "weights.pt", weights_only=True))
    with torch.inference_mode():
        expected = model.eval()(torch.tensor([[5, 17, 99]]), torch.tensor([3]))[0]

    (curl,) = (words for words in commands(README.read_text(), "curl") if "-d" in words)
    header, value = curl[curl.index("-H") + 1].split(": ")
    reply = post(tour_server.inference, "/predictions/tagger", curl[curl.index("-d") + 1].encode(), {header: value})
    assert reply.status == 200, reply.body
    assert_close(reply.json, expected)

    client = (tour / "client.py").read_text().replace(":8080/", f":{tour_server.inference}/")
    asked = subprocess.run([sys.executable, "-c", client], capture_output=True, text=True, check=True, timeout=60)
    assert asked.stdout.strip() == str(reply.json)


@pytest.mark.parametrize("name", ["surprise.client", "surprise.codec", "streaming.typist", "streaming.codec"])
def test_worked_examples_of_the_example_files_hold(name: str) -> None:
    tried = doctest.testmod(import_module(name))
    assert (tried.failed, tried.attempted > 0) == (0, True)


def test_the_picture_is_of_the_planners_calls() -> None:
    grid = BucketGrid(batches=(1, 2, 4, 8), lengths=(16, 32, 64))
    cost = CostModel({bucket: 0.05 + bucket.length * (0.02 + 0.0088 * bucket.batch) for bucket in grid.buckets})
    plan = make_planner("sequence", grid, cost).plan((9, 54, 14, 23, 7, 31, 12, 61, 16, 5, 26, 11))
    picture = (ROOT / "docs" / "batch.svg").read_text(encoding="utf-8")

    shown = re.findall(r">(\d) rows x (\d+) timesteps<", picture)
    assert [(int(rows), int(steps)) for rows, steps in shown] == [(c.bucket.batch, c.bucket.length) for c in plan.calls]
    assert f"of the {plan.computed_timesteps} computed timesteps" in picture
