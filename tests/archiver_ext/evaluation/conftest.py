"""Packaging in the process of a test, with an engine that compiles slowly."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import odd_engines
import pytest
from python_path import python_path

from torchserve_neuron_lstm.archiver_ext import archive_command, model_archiver

from ..conftest import Project


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The buckets that the expensive engine, `late`, was compiled for since the last call."""
    site = odd_engines.install(tmp_path / "site")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", python_path(site))
    monkeypatch.setenv("LATE_TELLS", str(tmp_path / "told"))

    def lines() -> list[str]:
        found = (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []
        (tmp_path / "told").write_text("")
        return found

    return lines


@pytest.fixture
def package(project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Package in this process: the report as JSON, or the error message."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("TMPDIR", str(project.temporary))
    monkeypatch.setattr("tempfile.tempdir", str(project.temporary))

    def run(
        backend: str,
        as_json: bool = True,
        batch: Sequence[int] = (1, 2),
        length: Sequence[int] = (2, 4),
        more: str = "",
    ) -> Any:
        project.configure(backend=backend, batch=batch, length=length)
        with (project.folder / "model-config.yaml").open("a") as config:
            config.write(more)
        words = [*project.flags(), "--handler", "neuron_lstm", "--export-path", str(project.folder), "--force"]
        flags = model_archiver.parse(words)
        code = archive_command.archive(flags, model_archiver.manifest_json(flags), as_json=as_json)
        output, error = capfd.readouterr()
        return error if code else json.loads(output) if as_json else output

    return run
