"""Figures of `benchmarks/archives.py`, as lines of `make seeds`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .row import Row, Status

_ENGINE, _RAN = "inductor", "real engine"


def archive_rows() -> list[Row]:
    """Run the benchmark, which takes some minutes. Its progress goes to standard error."""
    command = [sys.executable, "-m", "benchmarks.archives", "--json"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    try:
        return rows_of(json.loads(done.stdout))
    except ValueError:
        return [Row("archives", _ENGINE, _RAN, "failed", f"benchmarks.archives ended with {done.returncode}")]


def rows_of(found: Mapping[str, Any]) -> list[Row]:
    """The benchmark's figures as rows; a floor that is missed is a failure."""
    answers, speed, size = (one["reached"] for one in found["standings"])
    buckets = found["buckets"]
    return [
        Row(
            "replace-weights",
            _ENGINE,
            _RAN,
            _status(answers, speed),
            f"{found['replace_s']:.1f} s, a rebuild of {buckets} buckets {found['rebuild_s']:.1f} s: ratio "
            f"{found['replace_ratio']:.2f}; {found['differing']} of {found['compared']} answers differ in a bit",
        ),
        Row(
            "parallel compile",
            _ENGINE,
            _RAN,
            "ok",
            f"{found['compile_parallel_s']:.1f} s in {found['processes']} processes, {found['compile_one_s']:.1f} s in "
            f"one: {found['compile_ratio']:.2f} times faster",
        ),
        Row(
            "archive size",
            _ENGINE,
            _RAN,
            _status(size),
            f"{found['archive_bytes'] / 1e6:.1f} MB: {found['copies']:.2f} copies of the weights, not {buckets}",
        ),
    ]


def _status(*reached: str) -> Status:
    return "failed" if "missed" in reached else "ok"
