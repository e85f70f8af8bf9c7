"""A packaged model, weights that were trained further, and the command that replaces them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torchserve_neuron_lstm.archiver_ext import cli

from ...conftest import MODEL, Package, Project, save_weights
from .archive_files import Replace, Said


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with an archive for the eager engine, and weights that were trained further."""
    folder, temporary = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("temporary")
    project = Project(folder, temporary)
    (folder / "model.py").write_text(MODEL)
    save_weights(project)
    trained_further(folder)
    project.configure()
    done = project.archive()
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def project(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path / "project", tmp_path / "temporary")
    shutil.copytree(built, made.folder)
    made.temporary.mkdir()
    monkeypatch.chdir(made.folder)
    monkeypatch.setenv("TMPDIR", str(made.temporary))
    monkeypatch.setattr("tempfile.tempdir", str(made.temporary))
    return made


@pytest.fixture
def packaged(project: Project, package: Package) -> Callable[[str], Path]:
    def run(name: str) -> Path:
        code, _, error = package("--model-name", name)
        assert code == 0, error
        return project.folder / f"{name}.mar"

    return run


@pytest.fixture
def replace_weights(project: Project, capfd: pytest.CaptureFixture[str]) -> Replace:
    def run(*words: object) -> Said:
        return cli.main(["replace-weights", *map(str, words)]), *capfd.readouterr()

    return run


def trained_further(folder: Path) -> None:
    rng = torch.Generator().manual_seed(1)
    old = torch.load(folder / "weights.pt")
    torch.save(
        {key: tensor + 0.5 * torch.randn(tensor.shape, generator=rng) for key, tensor in old.items()}, folder / "new.pt"
    )
