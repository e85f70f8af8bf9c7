"""TorchServe's own settings, found by its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchserve_neuron_lstm.handlers.torchserve_settings import read_server_properties

JAVA = ["java", "-cp", "x.jar", "org.pytorch.serve.ModelServer", "--python", "/usr/bin/python"]


def process_of(folder: Path, command: list[str]) -> Path:
    """A process as `/proc` shows it."""
    process = folder / "process"
    process.mkdir()
    (process / "cmdline").write_bytes(b"\0".join(word.encode() for word in command) + b"\0")
    (process / "cwd").symlink_to(folder)
    return process


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration is named by the environment."""
    monkeypatch.delenv("TS_CONFIG_FILE", raising=False)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ([*JAVA, "-f", "own.properties"], "own.properties"),
        (["java", "-DtsConfigFile=own.properties", *JAVA[1:]], "own.properties"),
        (JAVA, "config.properties"),
    ],
)
def test_the_file_that_the_server_reads_is_read(command: list[str], file: str, tmp_path: Path) -> None:
    """Named on its command line, or the one in its working directory."""
    (tmp_path / file).write_text("# ours\nmax_response_size = 58000\nmodels={\\\n  }\n")

    found = read_server_properties(process_of(tmp_path, command))

    assert found == {"max_response_size": "58000", "models": "{}"}


def test_the_environment_names_the_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the server itself."""
    (tmp_path / "other").write_text("max_response_size=7\n")
    monkeypatch.setenv("TS_CONFIG_FILE", str(tmp_path / "other"))

    assert read_server_properties(process_of(tmp_path, JAVA)) == {"max_response_size": "7"}


def test_a_server_without_a_file_has_its_defaults(tmp_path: Path) -> None:
    """One that cannot be read is taken to have them."""
    assert read_server_properties(process_of(tmp_path, JAVA)) == {}
    assert read_server_properties(tmp_path / "gone") == {}
