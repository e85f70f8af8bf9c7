"""Each usual way of installation adds the handler to the standard command; uninstalling removes it."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from bare_host import make_bare_host
from import_rules import FOLDERS

from .conftest import Project

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (*FOLDERS, "src", "docs", "pyproject.toml", "constraints.txt", "CHANGELOG.md", "README.md", "LICENSE")
UV = str(Path(sys.executable).with_name("uv"))
PIP = [sys.executable, "-m", "pip", "--python", "{venv}/bin/python"]
WAYS = {
    "pip": ([*PIP, "install", "--no-deps"], [*PIP, "uninstall", "--yes"]),
    "pip editable": ([*PIP, "install", "--no-deps", "--editable"], [*PIP, "uninstall", "--yes"]),
    "uv": (
        [UV, "pip", "install", "--python", "{venv}/bin/python", "--no-deps"],
        [UV, "pip", "uninstall", "--python", "{venv}/bin/python"],
    ),
    "wheel of the source distribution": ([*PIP, "install", "--no-deps"], [*PIP, "uninstall", "--yes"]),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The project's files as in a clone: links are kept, and build outputs are left out."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A fresh environment with this one's packages and the standard command, but without this project."""
    folder = tmp_path / "venv"
    python = make_bare_host(folder)
    script = folder / "bin" / "torch-model-archiver"
    script.write_text(
        f"#!{python}\nimport sys\nfrom model_archiver.model_packaging import generate_model_archive\n"
        "if __name__ == '__main__':\n    sys.exit(generate_model_archive())\n"
    )
    script.chmod(0o755)
    return folder


def files(environment: Path) -> set[Path]:
    """All files except Python's caches and uv's own lock."""
    found = {path for path in environment.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return found - {environment / ".lock"}


def run(*command: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        command, cwd=cwd, env={**kept, **more}, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def archive(project: Project, environment: Path) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin" / "torch-model-archiver"), *project.flags(), "--handler", "neuron_lstm"]
    return run(*command, cwd=project.folder, TMPDIR=str(project.temporary))


def build(source: Path, folder: Path, target: str) -> Path:
    done = run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder), cwd=source)
    assert done.returncode == 0, done.stdout
    (made,) = folder.iterdir()
    return made


def wheel_of_source_distribution(checkout: Path) -> Path:
    beside = checkout.parent
    unpacked = beside / "unpacked"
    with tarfile.open(build(checkout, beside / "source", "sdist")) as packed:
        packed.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    return build(source, beside / "built", "wheel")


@pytest.mark.ci
def test_both_distributions_have_the_whole_package(checkout: Path) -> None:
    own = build(checkout, checkout.parent / "own", "wheel")
    other = wheel_of_source_distribution(checkout)
    with zipfile.ZipFile(own) as ours, zipfile.ZipFile(other) as theirs:
        package = {name: ours.read(name) for name in ours.namelist() if "dist-info" not in name}
        assert {name: theirs.read(name) for name in theirs.namelist() if "dist-info" not in name} == package
    packages = {name.split("/")[1] for name in package if name.count("/") > 1}
    assert packages == {path.name for path in (checkout / "src" / "torchserve_neuron_lstm").iterdir() if path.is_dir()}

    distributions = [str(other), *map(str, (checkout.parent / "source").iterdir())]
    checked = run(str(Path(sys.executable).with_name("twine")), "check", "--strict", *distributions, cwd=checkout)
    assert (checked.returncode, checked.stdout.count("PASSED")) == (0, 2), checked.stdout


@pytest.mark.ci
@pytest.mark.parametrize(
    "way",
    [
        "wheel of the source distribution",
        *(pytest.param(way, marks=pytest.mark.long) for way in ("pip", "pip editable", "uv")),
    ],
)
def test_the_handler_is_there_once_installed_and_gone_once_uninstalled(
    project: Project, checkout: Path, environment: Path, way: str
) -> None:
    before = files(environment)
    install, uninstall = ([word.format(venv=environment) for word in words] for words in WAYS[way])
    installable = wheel_of_source_distribution(checkout) if way.startswith("wheel") else checkout

    installed = run(*install, str(installable), cwd=environment)
    assert installed.returncode == 0, installed.stdout
    done = archive(project, environment)
    assert done.returncode == 0, done.stdout
    helped = run(str(environment / "bin" / "neuron-lstm"), "inspect", "tiny.mar", cwd=project.folder)
    assert helped.returncode == 0, helped.stdout
    (project.folder / "tiny.mar").unlink()

    removed = run(*uninstall, "torchserve-neuron-lstm", cwd=environment)
    assert removed.returncode == 0, removed.stdout
    assert files(environment) == before
    gone = archive(project, environment)
    assert gone.returncode == 1
    assert "FileNotFoundError" in gone.stdout
    assert "torchserve_neuron_lstm" not in gone.stdout
