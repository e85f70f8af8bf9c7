"""`neuron-lstm serve-ray`: the command line, and its message where Ray is not installed."""

import sys
from pathlib import Path

import pytest
from tiny_archive import make_archive

from torchserve_neuron_lstm.archiver_ext.cli import main


def test_without_ray_the_message_has_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "torchserve_neuron_lstm.hosts.ray", raising=False)
    monkeypatch.delitem(sys.modules, "torchserve_neuron_lstm.hosts.ray_serve.command", raising=False)

    assert main(["serve-ray", str(make_archive(tmp_path / "tiny"))]) == 1
    assert capsys.readouterr().err.endswith("pip install 'torchserve-neuron-lstm[ray]'\n")


def test_fewer_at_most_than_at_the_start_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-ray", "a.mar", "--replicas", "3", "--max-replicas", "2"]) == 1
    assert capsys.readouterr().err == "error: --max-replicas: expected 3 (--replicas) or more, got 2\n"


@pytest.mark.parametrize(
    "words", [[], ["a.mar", "--port", "65536"], ["a.mar", "--grpc-port", "0"], ["a.mar", "--replicas", "none"]]
)
def test_a_wrong_command_line_has_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve-ray", *words])

    assert end.value.code == 2
    assert "usage: neuron-lstm serve-ray" in capsys.readouterr().err
