"""The search itself, where atheris is installed, and what is told of it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fuzz.campaign import TargetResult
from fuzz.line_coverage import FileCoverage, lines_of
from fuzz.progress import runs_of, shown_progress
from fuzz.report import numbers, shown
from rich.console import Console

ROOT = Path(__file__).parents[2]
STATUS = "#2048\tpulse  cov: 571 ft: 1290 corp: 94/7712b lim: 4096 exec/s: 682 rss: 402Mb"
RESULTS = {"tokens": TargetResult(12_345, 2.0, {"a.input": "KeyError at x.py:3"}), "records": TargetResult(1, 1.0, {})}
COVERAGE = {"tokens": {"sessions/token.py": FileCoverage(4, (2,))}}


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository's root."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(find_spec("atheris") is None or find_spec("coverage") is None, reason="needs the extra fuzz")
def test_a_target_is_searched_and_its_coverage_told(tmp_path: Path) -> None:
    """A short search finds nothing, and reaches nearly all of the decoder."""
    words = ["-m", "fuzz", "--target", "records", "--runs", "2000", "--minutes", "0.5", "--json"]
    done = command(*words, "--findings", str(tmp_path / "findings"))

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["records"]
    assert told["runs"] >= 2000
    assert told["findings"] == {}
    assert told["coverage"]["sessions/session.py"]["percent"] > 90


def test_without_atheris_the_command_says_what_to_install() -> None:
    """Exit code 2, not a traceback."""
    hidden = "import sys; sys.modules['atheris'] = None; import fuzz.__main__ as m; sys.exit(m.main())"
    done = command("-c", hidden)

    assert done.returncode == 2
    assert "not installed: atheris" in done.stderr
    assert "pip install" in done.stderr


def test_the_runs_are_read_from_what_libfuzzer_writes() -> None:
    """Its other lines tell none."""
    assert runs_of(STATUS) == 2048
    assert runs_of("stat::number_of_executed_units: 5000") == 5000
    assert runs_of("INFO: Running with entropic power schedule (0xFF, 100).") is None
    assert shown_progress(STATUS) == "2048 runs, 571 places reached, 682 runs per second"
    assert shown_progress("stat::number_of_executed_units: 5000") is None


def test_runs_findings_and_coverage_are_reported() -> None:
    """As tables and as JSON."""
    output = io.StringIO()
    console = Console(width=120, file=output)
    console.print(shown(RESULTS, COVERAGE))
    text = output.getvalue()

    assert "12,345" in text
    assert "75.0 %" in text
    assert "tokens/a.input: KeyError at x.py:3" in text
    assert numbers(RESULTS, COVERAGE)["tokens"]["coverage"] == {
        "sessions/token.py": {"lines": 4, "missed": [2], "percent": 75.0}
    }


def test_lines_that_do_not_decode_are_left_out_by_name() -> None:
    """A name that is no longer there is an error: its lines would count unnoticed."""
    source = "def f():\n    pass\n\n\nclass A:\n    def g(self):\n        pass\n"

    assert lines_of(source, ["f", "g"]) == {1, 2, 6, 7}
    with pytest.raises(ValueError, match="no function or class h"):
        lines_of(source, ["h"])
