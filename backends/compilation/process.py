"""Compiling process, with a separate process session and temporary directory.

The compilers that it starts end with it. `worker.py` is what it runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...config.json_codec import to_json
from ...config.partitioner import PartitionerConfig
from ..disk_size import disk_size
from ..interface import CompileSettings
from ..subprocesses import describe_exit, package_path
from .job import CompileFailure, CompileJob, CompileOutcome, CompileResult, crash_of

_LAST_LINES = 20


class CompileProcess:
    """A compiling process, started for its first job and again after a crash."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def compile(self, job: CompileJob) -> CompileOutcome:
        """Compile one job. A failure is the job's result and is not raised."""
        job.make_folders()
        reply = self._ask(_request(job))
        if "seconds" in reply:
            return CompileResult(job, reply["seconds"], disk_size(job.directory))
        if "refused" in reply:
            return CompileFailure(job, reply["refused"])
        return crash_of(job, reply["crashed"], reply["log"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return dict(json.loads(line))
        return {"crashed": describe_exit(process.wait()), "log": self._log_tail()}

    def _running(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                if self._stopped:
                    raise RuntimeError("compilation was stopped")
                self.close()
                self._process = self._start()
            return self._process

    def _start(self) -> subprocess.Popen[str]:
        self._scratch.mkdir(parents=True, exist_ok=True)
        with self._log().open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._scratch,
                env={**os.environ, "TMPDIR": str(self._scratch), "PYTHONPATH": package_path()},
                start_new_session=True,
            )

    def _log(self) -> Path:
        return self._scratch / "stderr.log"

    def _log_tail(self) -> str:
        return "\n".join(self._log().read_text(errors="replace").splitlines()[-_LAST_LINES:])

    def stop(self) -> None:
        """Kill the process and all processes that it started."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def close(self) -> None:
        """Close the pipes to the process."""
        if self._process is not None:
            for pipe in filter(None, (self._process.stdin, self._process.stdout)):
                with suppress(BrokenPipeError):  # data that was not yet written to a dead process
                    pipe.close()


def _request(job: CompileJob) -> dict[str, Any]:
    return {
        "program": str(job.program),
        "backend": job.backend,
        "part": job.part,
        "bucket": job.bucket,
        "settings": to_json(CompileSettings, job.settings),
        "partitioner": None if job.partitioner is None else to_json(PartitionerConfig, job.partitioner),
        "directory": str(job.directory),
    }
