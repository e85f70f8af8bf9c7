"""Commands of `neuron-lstm` in this process, and what they print."""

import pytest

from torchserve_neuron_lstm.archiver_ext import cli

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *words: object) -> str:
    """The standard output of a command that succeeds."""
    assert cli.main([*map(str, words)]) == 0
    return capsys.readouterr().out


def refusal(capsys: Capture, *words: object) -> str:
    """The standard error of a command that ends with 1."""
    assert cli.main([*map(str, words)]) == 1
    return capsys.readouterr().err


def misuse(capsys: Capture, *words: object) -> str:
    """The standard error of a wrong command line, which ends with 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*map(str, words)])
    assert ended.value.code == 2
    return capsys.readouterr().err
