"""Programs of `examples/`, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path


def run_example(program: Path, *words: str, temporary: Path, seconds: int, **variables: str) -> str:
    """Return the output of a program that leaves nothing in `temporary` but the cache of torch.optim."""
    done = subprocess.run(
        [sys.executable, str(program), *words],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=seconds,
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "120", "PYTHONIOENCODING": "utf-8", **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [entry.name for entry in temporary.iterdir() if not entry.name.startswith("torchinductor_")] == []
    return done.stdout
