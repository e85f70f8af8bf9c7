"""`make demo` with less training, from the files of the example to the table."""

import re
from pathlib import Path

import pytest
from example_runs import run_example

pytestmark = pytest.mark.ci

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)%\s+[\d.]+ ms\s+(\S+)\s+[\d.]+ ", re.MULTILINE)


@pytest.mark.parametrize(
    "machine", [{"CXX": "no-such-compiler"}, pytest.param({}, marks=pytest.mark.long)], ids=["no compiler", "as it is"]
)
def test_the_demo_serves_what_it_trained_and_cleans_up(temporary: Path, machine: dict[str, str]) -> None:
    shown = run_example(DEMO, "--steps", "30", temporary=temporary, seconds=400, **machine)
    rows = ROW.findall(shown)
    assert len(rows) == 25
    for length, bucket, padding, difference in rows:
        assert int(length) <= int(bucket)
        assert int(padding) == round(100 * (1 - int(length) / int(bucket)))
        assert float(difference) <= 2e-4  # bits, of up to 20
    assert "Stopped TorchServe" in shown
