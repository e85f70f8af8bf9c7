import re
from pathlib import Path

from tools.bench.__main__ import PROGRAMS

from torchserve_neuron_lstm.archiver_ext.cli import _parser

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_the_command_takes_the_options_that_are_shown() -> None:
    shown = re.search(r"^neuron-lstm (bench .*)$", TEXT, re.MULTILINE)
    assert shown is not None
    options = _parser().parse_args([*shown[1].split(), "--threads", "1", "--json"])

    assert (str(options.archive), str(options.lengths), options.batch) == ("tagger.mar", "lengths.txt", 32)


def test_targets_and_programs_are_there() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert set(re.findall(r"`make ([\w-]+)", TEXT)) <= {*targets}
    assert set(re.findall(r"python -m tools\.bench ([a-z]+)", TEXT)) <= {*PROGRAMS}
    assert all(f"make {name}" in TEXT for name in targets if name.startswith("bench"))
