"""Archives of an earlier release: their own code serves them, and the current commands read them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from python_path import python_path

from torchserve_neuron_lstm.archiver_ext.cli import main

from .conftest import call
from .projects import ARCHIVES, DATA, DOUBLES, PROJECTS, archived_names, write_project
from .serving import Job, assert_close, requests, rows, serve, unpack, values
from .shapes import key_paths, keys

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("contract archives")]
KEYS = json.loads((DATA / "keys.json").read_text())
NAMES = archived_names()
REFUSED = {"tagger_neuron": "replace-weights", "exact_eager": "tune"}
"""Commands that refuse an archive: compiled-in weights, and lengths that the user chooses."""


@dataclass(frozen=True)
class Renewed:
    """An archive that was calibrated and given other weights by the current commands."""

    archive: Path
    model: torch.nn.Module
    told: dict[str, Any]
    """The JSON output of each command, by its name."""


def manifest_of(archive: Path) -> Any:
    """Its variants.json."""
    with ZipFile(archive) as file:
        return json.loads(file.read("variants.json"))


def answers(name: str, result: dict[str, Any]) -> list[Any]:
    """The values of all answers of a host; none may be a refusal."""
    assert "error" not in result, result
    (batch,) = result["batches"]
    assert [answer["status"] for answer in batch] == [200] * len(batch), batch
    is_json = "codec:" not in PROJECTS[name].block
    return [values(json.loads(answer["body"])) if is_json else answer["body"] for answer in batch]


def served(archives: dict[str, Path], place: Path) -> dict[str, dict[str, Any]]:
    """The answers of a host without this repository to the requests of each archive."""
    environment = {"NEURON_LSTM_SESSIONS": str(place / "sessions")}
    jobs = [
        Job(unpack(archive, place / "unpacked" / name), name, [rows(name)], environment)
        for name, archive in archives.items()
    ]
    return dict(zip(archives, serve(jobs, place), strict=True))


@pytest.fixture(scope="module")
def as_they_are(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The archives served unchanged."""
    return served({name: ARCHIVES / f"{name}.mar" for name in NAMES}, tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def renewed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Renewed]:
    """Every archive after all commands that read or write it."""
    place = tmp_path_factory.mktemp("renewed")
    return {name: renew(name, place) for name in NAMES}


def renew(name: str, place: Path) -> Renewed:
    """Inspect, measure, calibrate and tune a copy of an archive, and replace its weights."""
    archive = Path(shutil.copy(ARCHIVES / f"{name}.mar", place))
    model = write_project(name, place / name, seed=1)
    told = {}
    for command, words in commands(name, archive, place / name).items():
        if command != REFUSED.get(name):
            with modules_of(name):
                told[command] = json.loads(call(command, *words, "--json"))
    return Renewed(archive, model, told)


def commands(name: str, archive: Path, user: Path) -> dict[str, tuple[object, ...]]:
    """The arguments of each command, for an archive and a user's folder."""
    lengths = user / "lengths.txt"
    lengths.write_text("2:3 4 4 2\n")
    return {
        "inspect": (archive,),
        "bench": (archive, "--lengths", lengths, "--batch", 2, "--rounds", 1, "--threads", 1),
        "tune": (lengths, "--archive", archive, "--config", user / "model-config.yaml", "--longest", 4),
        "calibrate": (archive, "--threads", 1),
        "replace-weights": (archive, user / "weights.pt"),
    }


@contextmanager
def modules_of(name: str) -> Iterator[None]:
    """Make a project's modules and doubles importable in the block, and remove them after it."""
    forgotten = {"torch_neuronx", "torch_neuron", *(Path(file).stem for file in PROJECTS[name].extra)}
    with pytest.MonkeyPatch.context() as patch:
        if PROJECTS[name].doubles:
            patch.syspath_prepend(DOUBLES)
            patch.setenv("PYTHONPATH", python_path(DOUBLES))
        yield
    for module in [module for module in sys.modules if module.split(".")[0] in forgotten]:
        del sys.modules[module]


@pytest.fixture(scope="module")
def served_anew(renewed: dict[str, Renewed], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The archives served by their own old code, after changes by the current commands."""
    return served({name: one.archive for name, one in renewed.items()}, tmp_path_factory.mktemp("new"))


@pytest.mark.parametrize("name", NAMES)
def test_an_old_archive_answers_as_it_did(name: str, as_they_are: dict[str, dict[str, Any]]) -> None:
    """Only the archive's own serving code is used."""
    expected = json.loads((ARCHIVES / f"{name}.json").read_text())

    assert_close(answers(name, as_they_are[name]), expected)
    assert as_they_are[name]["files"]
    assert all(f"unpacked/{name}/torchserve_neuron_lstm/" in file for file in as_they_are[name]["files"])


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command, name)
        for command in ("inspect", "bench", "tune", "calibrate", "replace-weights")
        for name in NAMES
        if REFUSED.get(name) != command
    ],
)
def test_a_command_reads_it_and_says_what_it_said(name: str, command: str, renewed: dict[str, Renewed]) -> None:
    """The JSON output has the same keys."""
    assert keys(renewed[name].told[command]) == KEYS[command][name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_command_cannot_do_for_an_archive_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is one message, and the archive is not changed."""
    archive = Path(shutil.copy(ARCHIVES / f"{name}.mar", tmp_path))
    write_project(name, tmp_path / "user", seed=1)
    words = commands(name, archive, tmp_path / "user")[REFUSED[name]]
    with modules_of(name):
        assert main([REFUSED[name], *map(str, words)]) == 1

    assert capsys.readouterr().err.startswith("error: ")
    assert archive.read_bytes() == (ARCHIVES / f"{name}.mar").read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_inspect_prints_the_manifest_as_it_is(name: str, renewed: dict[str, Renewed]) -> None:
    """With the times of its steps if it streams, and with operators on the CPU if there are any."""
    told = dict(renewed[name].told["inspect"])

    assert ("step_times" in told) == (told["streaming"] is not None)
    told.pop("step_times", None)
    assert bool(told.pop("on_cpu", [])) == (name in ("divided_onnxruntime", "tagger_neuron"))
    assert told == manifest_of(ARCHIVES / f"{name}.mar")


@pytest.mark.parametrize("name", NAMES)
def test_its_old_code_serves_what_the_commands_wrote(
    name: str, renewed: dict[str, Renewed], served_anew: dict[str, dict[str, Any]]
) -> None:
    """The answers are those of the new weights, and the milliseconds are the new ones.

    How they were measured is a key that the old code does not know, and ignores.
    """
    before, after = manifest_of(ARCHIVES / f"{name}.mar"), manifest_of(renewed[name].archive)
    measurement = after.pop("measurement")

    assert measurement.keys() == {"threads", "doubts"}
    assert measurement["threads"] == 1
    assert set(key_paths({**after, "files": None})) == set(key_paths({**before, "files": None}))
    assert [{**cost, "milliseconds": 0} for cost in after["costs"]] == [
        {**cost, "milliseconds": 0} for cost in before["costs"]
    ]
    assert before["costs"] != after["costs"]
    new, old = answers(name, served_anew[name]), json.loads((ARCHIVES / f"{name}.json").read_text())
    if REFUSED.get(name) == "replace-weights":
        assert_close(new, old)
    elif "codec:" in PROJECTS[name].block:
        assert [text.count(" ") for text in new] == [text.count(" ") for text in old]
    else:
        assert_close([outputs(answer) for answer in new], own_answers(name, renewed[name].model))


def outputs(answer: Any) -> list[Any]:
    """The values of an answer without its session fields; for classes, the scores in the order of classes."""
    if "high" in answer:
        return [[answer[label] for label in ("low", "middle", "high", "highest")]]
    return [value for key, value in answer.items() if not key.startswith("ts_request")]


@torch.no_grad()
def own_answers(name: str, model: torch.nn.Module) -> list[Any]:
    """The answers of the model itself to each request alone."""
    found = []
    for body in requests(name):
        tensors = [torch.tensor(value)[None] for value in body.values()]
        lengths = [torch.tensor([tensors[0].shape[1]])] if "lengths:" in PROJECTS[name].block else []
        answer = model(*tensors, *lengths)
        if "index_to_name.json" in PROJECTS[name].extra:
            answer = torch.softmax(answer, 1)
        found.append([one[0].tolist() for one in (answer if isinstance(answer, tuple) else (answer,))])
    return found


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the environment names for sessions."""
    monkeypatch.setenv("NEURON_LSTM_SESSIONS", str(tmp_path / "sessions"))
    return tmp_path / "sessions"


def test_sessions_of_an_old_archive_are_counted(sessions: Path, tmp_path: Path) -> None:
    """The counted sessions are those that the archive's own code left in the folder of the environment."""
    archive = ARCHIVES / "stream_disk.mar"
    environment = {"NEURON_LSTM_SESSIONS": str(sessions)}
    (result,) = serve(
        [Job(unpack(archive, tmp_path / "a"), "stream_disk", [rows("stream_disk")], environment)], tmp_path
    )
    assert len(answers("stream_disk", result)) == 4

    told = json.loads(call("sessions", archive, "--json"))
    assert told["sessions"] == 4
    assert Path(told["where"]).is_relative_to(sessions)
    assert keys(told) == KEYS["sessions"]
