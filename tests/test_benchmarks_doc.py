"""Statements of docs/benchmarks.md on programs are true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.cli import _parser

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("program", ["ragged", "rest", "serve", "compare", "in_process"])
def test_the_programs_take_the_options_that_are_shown(program: str) -> None:
    """The defaults are the shown ones, and the programs run from the repository's root."""
    shown = re.search(rf"`python -m benchmarks\.{program} (.*?)`", TEXT)
    assert shown is not None
    told = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{program}", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    ).stdout
    options = re.findall(r"\[(--[\w-]+) ([^\]]+)\]", shown[1])

    assert {option for option, _ in options} >= set(re.findall(r"\[(--[\w-]+)", told)) - {"--backend"}
    for option, value in options:
        assert option in told
        if value.isdigit():
            assert re.search(rf"{option} \w+\s[^-]*\(default: {value}(?:\.0)?\)", told), told


def test_the_command_takes_the_options_that_are_shown() -> None:
    """The parser has them."""
    shown = re.search(r"^neuron-lstm (bench .*)$", TEXT, re.MULTILINE)
    assert shown is not None
    options = _parser().parse_args([*shown[1].split(), "--threads", "1", "--json"])

    assert (str(options.archive), str(options.lengths), options.batch) == ("tagger.mar", "lengths.txt", 32)


def test_makes_targets_are_there() -> None:
    """Every benchmark with a target is checked."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"## .*`make ([\w-]+)`", TEXT):
        assert f"\n{target}: " in makefile
