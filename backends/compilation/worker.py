"""Compiling process: one job for each line of standard input, one reply for each on standard output.

It ends when its input ends, so that it cannot outlive the packaging that started it. All output of an engine goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

import torch

from ...bucketing.shapes import Bucket
from ...config.json_codec import from_json
from ...config.partitioner import PartitionerConfig
from ..exported_program import load_program
from ..interface import CompileError, CompileSettings
from .job import CompileJob, compile_seconds


def main() -> None:
    """Compile jobs until standard input ends."""
    replies = _take_stdout()
    programs: dict[str, torch.export.ExportedProgram] = {}
    for line in sys.stdin:
        job = json.loads(line)
        if job["program"] not in programs:
            programs[job["program"]] = load_program(Path(job["program"]))
        print(json.dumps(_reply(job, programs[job["program"]])), file=replies, flush=True)


def _take_stdout() -> TextIO:
    """Reserve standard output for replies; everything else that is written there goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _reply(given: dict[str, Any], program: torch.export.ExportedProgram) -> dict[str, Any]:
    try:
        return {"seconds": compile_seconds(_job(given), program)}
    except CompileError as error:
        return {"refused": str(error)}
    except Exception as error:  # noqa: BLE001 - a failure of the engine, reported as such
        return {"crashed": f"{type(error).__name__}: {error}", "log": traceback.format_exc()}


def _job(given: dict[str, Any]) -> CompileJob:
    partitioner = given["partitioner"]
    return CompileJob(
        given["backend"],
        given["part"],
        None if given["bucket"] is None else Bucket(*given["bucket"]),
        Path(given["program"]),
        Path(given["directory"]),
        from_json(CompileSettings, given["settings"]),
        None if partitioner is None else from_json(PartitionerConfig, partitioner),
    )


if __name__ == "__main__":
    main()
