"""`neuron-lstm serve-ray`: the command line, and its message where Ray is not installed."""

import sys
from pathlib import Path

import pytest
from printed import Capture, misuse, refusal
from tiny_archive import make_archive


def test_without_ray_the_command_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "torchserve_neuron_lstm.hosts.ray", raising=False)
    monkeypatch.delitem(sys.modules, "torchserve_neuron_lstm.hosts.ray_serve.command", raising=False)

    told = refusal(capsys, "serve-ray", make_archive(tmp_path / "tiny"))
    assert told.endswith("pip install 'torchserve-neuron-lstm[ray]'\n")


def test_fewer_at_most_than_at_the_start_are_refused(capsys: Capture) -> None:
    told = refusal(capsys, "serve-ray", "a.mar", "--replicas", "3", "--max-replicas", "2")
    assert told == "error: --max-replicas: expected 3 (--replicas) or more, got 2\n"


@pytest.mark.parametrize(
    "words", [[], ["a.mar", "--port", "65536"], ["a.mar", "--grpc-port", "0"], ["a.mar", "--replicas", "none"]]
)
def test_a_wrong_command_line_has_exit_code_2(words: list[str], capsys: Capture) -> None:
    assert "usage: neuron-lstm serve-ray" in misuse(capsys, "serve-ray", *words)
