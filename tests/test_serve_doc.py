"""docs/serve.md tells the settings that `neuron-lstm serve` writes."""

import re
import shlex
from pathlib import Path

from torchserve_neuron_lstm.archiver_ext.cli import _parser
from torchserve_neuron_lstm.hosts.torchserve.properties import ServeOptions, properties, unknown_settings

TEXT = (Path(__file__).parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")
WRITTEN = properties(ServeOptions(()), {"a": "a.mar"}, 1, Path("/metrics.yaml"))
TOLD_ELSEWHERE = re.compile(r".*_address|grpc_.*|load_models|disable_token_authorization")
"""Settings of the parts on ports and tokens."""


def rows() -> dict[str, str]:
    table = TEXT.partition("\n## Settings\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {name: value for names, value, *_ in cells for name in re.findall(r"`(\w+)`", names)}


def test_the_table_has_every_setting_that_is_written() -> None:
    assert set(rows()) == {name for name in WRITTEN if not TOLD_ELSEWHERE.fullmatch(name)}


def test_values_of_the_table_are_those_that_are_written() -> None:
    told = {name: value.strip("`") for name, value in rows().items() if re.fullmatch(r"`[^`]*`|\d+", value)}

    assert len(told) >= 6
    assert told == {name: WRITTEN[name] for name in told}


def test_the_shown_commands_are_taken() -> None:
    shown = [shlex.split(line, comments=True) for line in re.findall(r"^neuron-lstm (serve .*)$", TEXT, re.MULTILINE)]
    settings = [name for words in shown for name, _ in _parser().parse_args(words).set]

    assert len(shown) == 5
    assert unknown_settings(settings) == []
