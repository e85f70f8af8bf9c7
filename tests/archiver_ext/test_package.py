"""The standard command makes whole archives, in every format, and never half of one."""

import json
import re
import zipfile
from pathlib import Path

import pytest

from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive

from .archived_answers import check_answers, unpacked
from .conftest import Package, Project

SERVING_FOLDERS = {"handlers", "bucketing", "backends", "config", "sessions", "__init__.py"}


@pytest.mark.ci
def test_the_stock_command_makes_a_whole_archive_and_tells_what_is_in_it(project: Project, tmp_path: Path) -> None:
    precious = project.temporary / "tiny" / "precious.txt"  # the unmodified archiver would delete it
    precious.parent.mkdir()
    precious.write_text("mine")
    before = project.listing()

    done = project.archive()

    assert done.returncode == 0, done.stderr
    for told in ("KB, eager in float32", "verified: every output", "requests of 1 to ", "serve it: neuron-lstm serve "):
        assert told in done.stdout
    assert len(done.stdout.splitlines()) <= 12
    assert re.search("compile 1/2: eager (chunk|head) any shape", done.stderr)
    assert project.listing() - before == {str(project.folder / "tiny.mar")}
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
    assert json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())["model"] == {
        "modelName": "tiny",
        "serializedFile": "weights.pt",
        "handler": "neuron_lstm",
        "modelFile": "model.py",
        "modelVersion": "1.0",
        "configFile": "model-config.yaml",
    }
    assert {path.name for path in (folder / "torchserve_neuron_lstm").iterdir()} == SERVING_FOLDERS
    assert {path.name for path in (folder / "torchserve_neuron_lstm" / "config").iterdir()} == {
        "__init__.py",
        "json_codec.py",
        "manifest_values.py",
        "manifest.py",
        "own_model.py",
    }
    assert "inductor.py" not in {path.name for path in (folder / "torchserve_neuron_lstm" / "backends").iterdir()}
    assert (folder / "weights.pt").read_bytes() == (project.folder / "weights.pt").read_bytes()
    check_answers(project, folder)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("archive_format", "name"),
    [("default", "tiny.mar"), ("zip-store", "tiny.mar"), ("tgz", "tiny.tar.gz"), ("no-archive", "tiny")],
)
def test_every_archive_format_unpacks_to_what_was_verified(
    project: Project, package: Package, tmp_path: Path, archive_format: str, name: str
) -> None:
    code, _, error = package("--archive-format", archive_format)

    assert code == 0, error
    archive = project.folder / name
    check_answers(project, unpacked(archive, tmp_path / "host"), (3, 1, 4))
    if archive.suffix == ".mar":
        with zipfile.ZipFile(archive) as file:
            methods = {entry.compress_type for entry in file.infolist() if entry.filename != "MAR-INF/MANIFEST.json"}
        assert methods == {zipfile.ZIP_STORED if archive_format == "zip-store" else zipfile.ZIP_DEFLATED}


def test_an_archive_that_exists_is_refused_before_anything_is_done(project: Project, package: Package) -> None:
    (project.folder / "tiny.mar").write_text("old")
    (project.folder / "model.py").write_text("raise SystemError('read')")

    code, _, error = package()

    assert code == 1
    assert "tiny.mar already exists" in error
    assert "--force" in error
    assert (project.folder / "tiny.mar").read_text() == "old"


def test_force_replaces_a_whole_folder(project: Project, package: Package, caplog: pytest.LogCaptureFixture) -> None:
    (project.folder / "tiny").mkdir()
    (project.folder / "tiny" / "stale.py").write_text("old")

    code, _, error = package("--archive-format", "no-archive", "-f")

    assert code == 0, error
    assert "Overwriting" in caplog.text
    assert not (project.folder / "tiny" / "stale.py").exists()
    assert (project.folder / "tiny" / "variants.json").is_file()
    assert not list(project.folder.glob(".*"))


def test_force_keeps_the_old_archive_when_packaging_fails(
    project: Project, package: Package, caplog: pytest.LogCaptureFixture
) -> None:
    (project.folder / "tiny.mar").write_text("old")
    (project.folder / "weights.pt").write_bytes(b"rubbish")

    code, *_ = package("-f")

    assert code == 1
    assert "Overwriting" not in caplog.text
    assert (project.folder / "tiny.mar").read_text() == "old"


def test_extra_files_keep_their_meaning(project: Project, package: Package, tmp_path: Path) -> None:
    more = project.folder / "more"
    for name in ("words.txt", "deep/er.txt", ".hidden/secret.txt", "__pycache__/old.pyc"):
        (more / name).parent.mkdir(parents=True, exist_ok=True)
        (more / name).write_text(name)
    (project.folder / "requirements.txt").write_text("")

    code, output, error = package("--extra-files", "more,model.p*", "-r", "requirements.txt")
    assert "requirements.txt is not installed on hosts: write useVenv: true" in output

    assert code == 0, error
    folder = unpacked(project.folder / "tiny.mar", tmp_path / "host")
    assert (folder / "words.txt").is_file()
    assert (folder / "deep" / "er.txt").is_file()
    assert not list(folder.rglob("secret.txt"))
    assert (
        json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text())["model"]["requirementsFile"]
        == "requirements.txt"
    )
    check_folder(str(folder), None)
    load_archive(folder, threads=1)
