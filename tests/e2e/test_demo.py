"""`make demo` with less training, from the files of the example to the table."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)%\s+[\d.]+ ms\s+(\S+)\s+[\d.]+ ", re.MULTILINE)


@pytest.mark.parametrize(
    "machine", [{"CXX": "no-such-compiler"}, pytest.param({}, marks=pytest.mark.long)], ids=["no compiler", "as it is"]
)
def test_the_demo_serves_what_it_trained_and_cleans_up(temporary: Path, machine: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--steps", "30"],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**os.environ, **machine, "TMPDIR": str(temporary), "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = ROW.findall(done.stdout)
    assert len(rows) == 25
    for length, bucket, padding, difference in rows:
        assert int(length) <= int(bucket)
        assert int(padding) == round(100 * (1 - int(length) / int(bucket)))
        assert float(difference) <= 2e-4  # bits, of up to 20
    assert "Stopped TorchServe" in done.stdout
    left = {entry.name for entry in temporary.iterdir() if not entry.name.startswith("torchinductor_")}
    assert left == set()  # except torch's own cache, which torch.optim makes
