"""Archives of the contract tests: those of the current code, and those of an earlier release."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from torchserve_neuron_lstm.archiver_ext.cli import main

from .projects import ARCHIVER, archive_words, environment_of, run, write_project
from .serving import unpack


def call(*words: object) -> str:
    """The standard output of a command of `neuron-lstm`, which must succeed."""
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        code = main([str(word) for word in words])
    assert code == 0, out.getvalue() + told.getvalue()
    return out.getvalue()


class Packaged:
    """Archives made by the current code, each once for all test processes, with the report of packaging."""

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir(exist_ok=True)

    def archive(self, name: str) -> Path:
        """The archive's file."""
        self.told(name)
        return self._place / f"{name}.mar"

    def told(self, name: str) -> Any:
        """The report of packaging as JSON; None from torch-model-archiver, which packages one of them."""
        told = self._place / f"{name}.told.json"
        with (self._place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not told.exists():
                told.write_text(self._package(name))
        return json.loads(told.read_text())

    def _package(self, name: str) -> str:
        write_project(name, self._place / name)
        stock = name == "tagger_eager"
        command = [str(ARCHIVER)] if stock else [str(ARCHIVER.with_name("neuron-lstm")), "archive", "--json"]
        done = run([*command, *archive_words(name, self._place)], self._place / name, environment_of(name))
        assert done.returncode == 0, done.stdout + done.stderr
        return "null" if stock else done.stdout

    def manifest(self, name: str) -> Any:
        """Its variants.json."""
        with ZipFile(self.archive(name)) as file:
            return json.loads(file.read("variants.json"))

    def unpacked(self, name: str, folder: Path) -> Path:
        """Its files in a new folder."""
        return unpack(self.archive(name), folder)


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    """The archives of the current code, shared by all processes of a run."""
    base = tmp_path_factory.getbasetemp()
    return Packaged((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "contracts")


@pytest.fixture(autouse=True)
def no_cores_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the core variables, and undo changes of the environment by a command."""
    before = dict(os.environ)
    for variable in ("NEURON_RT_NUM_CORES", "NEURON_RT_VISIBLE_CORES", "NEURON_DOUBLE_CORES"):
        monkeypatch.delenv(variable, raising=False)
    yield
    for variable in set(os.environ) - set(before):
        del os.environ[variable]
