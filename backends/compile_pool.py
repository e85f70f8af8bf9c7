"""Parallel compilation, in as many processes as there are cores.

Each process has its own process session and its own temporary directory. When packaging stops (an unsupported program,
a failure, Ctrl-C), the compilers that it started end with it and leave no files behind.

A single engine that compiles quickly does so in this process, which has imported torch already. Beside other engines it
has a process of its own: if that ends, the others go on. A program that was compiled before is copied from the cache.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..config.json_codec import to_json
from ..config.partitioner import PartitionerConfig
from .compile_cache import entries
from .compile_cache.key import program_key
from .compile_job import CompileFailure, CompileJob, CompileOutcome, CompileResult, compile_seconds
from .exported_program import load_program
from .interface import CompileError, CompileSettings
from .registry import ENGINES
from .subprocesses import describe_exit, package_path

_LAST_LINES = 20


def compile_all(
    jobs: Sequence[CompileJob],
    scratch: Path,
    report: Callable[[CompileOutcome], None],
    max_workers: int | None = None,
    cache: Path | None = None,
    until: float | None = None,
) -> list[CompileOutcome]:
    """Compile all jobs.

    After a job fails, the other jobs of its engine are skipped; when no engine is left, all processes are stopped.
    `report` is called with each result as it arrives. `scratch` is a private directory for the compilers' files.
    `max_workers` is the largest number of processes; None: one for each core. `cache` is the folder of the cache;
    None: every job is compiled. After `until`, a time of the monotonic clock, no job is begun, and the results are
    fewer than the jobs.
    """
    if cache is None:
        return _compile(jobs, scratch, report, max_workers, until)
    keys = {job.directory: key for job in jobs if (key := program_key(job)) is not None}
    known = [job for job in jobs if job.directory in keys]
    copied = {
        job.directory: result for job in known if (result := _copied(job, keys[job.directory], cache)) is not None
    }
    for result in copied.values():
        report(result)
    compiled = _compile([job for job in jobs if job.directory not in copied], scratch, report, max_workers, until)
    for outcome in compiled:
        if isinstance(outcome, CompileResult) and outcome.job.directory in keys:
            entries.keep(cache, keys[outcome.job.directory], outcome.job.directory)
    return [*copied.values(), *compiled]


def _copied(job: CompileJob, key: str, cache: Path) -> CompileResult | None:
    """The result of a job whose program is in the cache."""
    started = time.perf_counter()
    if not entries.fetch(cache, key, job.directory):
        return None
    return CompileResult(job, time.perf_counter() - started, disk_size(job.directory), cached=True)


def _compile(
    jobs: Sequence[CompileJob],
    scratch: Path,
    report: Callable[[CompileOutcome], None],
    max_workers: int | None,
    until: float | None,
) -> list[CompileOutcome]:
    if _quick(jobs):
        return _compile_here(jobs, report)
    engines = {job.backend for job in jobs}
    results: list[CompileOutcome] = []
    pending = [] if _is_over(until) else list(jobs)
    running: dict[Future[CompileOutcome], _Worker] = {}
    # Programs for any shape are compiled in less time than a further process takes to start.
    parallel = len({(job.backend, job.bucket) for job in pending})
    count = max(1, min(parallel, max_workers or len(os.sched_getaffinity(0))))
    workers = [_Worker(scratch / f"worker{index}") for index in range(count)]
    free = list(workers)
    with _closed_after(workers), ThreadPoolExecutor(count) as threads, _stopped_after(workers):
        while engines and (pending or running):
            while free and pending:
                worker = free.pop()
                running[threads.submit(worker.compile, pending.pop(0))] = worker
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                free.append(running.pop(done))
                results.append(done.result())
                report(results[-1])
            engines -= {result.job.backend for result in results if isinstance(result, CompileFailure)}
            pending = [job for job in pending if job.backend in engines and not _is_over(until)]
    return results


def _is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _quick(jobs: Sequence[CompileJob]) -> bool:
    """Whether the jobs, if there are any, are those of one engine that compiles quickly."""
    if not jobs:
        return True
    engines = {job.backend for job in jobs}
    whole = all(job.partitioner is None for job in jobs)
    return whole and len(engines) == 1 and all(name in ENGINES and ENGINES[name].quick for name in engines)


def _compile_here(jobs: Sequence[CompileJob], report: Callable[[CompileOutcome], None]) -> list[CompileOutcome]:
    results: list[CompileOutcome] = []
    for job in jobs:
        results.append(_outcome(job))
        report(results[-1])
        if isinstance(results[-1], CompileFailure):
            break
    return results


def _outcome(job: CompileJob) -> CompileOutcome:
    _make_folders(job)
    try:
        seconds = compile_seconds(job, load_program(job.program))
    except CompileError as error:
        return CompileFailure(job, str(error))
    except Exception as error:  # noqa: BLE001 - a failure of the engine, reported as such
        return _failure(job, f"{type(error).__name__}: {error}", traceback.format_exc())
    return CompileResult(job, seconds, disk_size(job.directory))


def _make_folders(job: CompileJob) -> None:
    job.directory.mkdir(parents=True)
    if job.settings.workdir is not None:
        job.settings.workdir.mkdir(parents=True, exist_ok=True)


def _failure(job: CompileJob, crash: str, log: str) -> CompileFailure:
    return CompileFailure(job, f"the engine failed ({crash})\n{textwrap.indent(log, '    ')}")


@contextmanager
def _stopped_after(workers: Sequence[_Worker]) -> Iterator[None]:
    """Stop the workers at the end, so that no thread waits for them."""
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()


@contextmanager
def _closed_after(workers: Sequence[_Worker]) -> Iterator[None]:
    """Close the workers' pipes at the end, once no thread reads from them."""
    try:
        yield
    finally:
        for worker in workers:
            worker.close()


class _Worker:
    """A compiling process, started for its first job and again after a crash."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def compile(self, job: CompileJob) -> CompileOutcome:
        """Compile one job. A failure is the job's result and is not raised."""
        _make_folders(job)
        reply = self._ask(
            {
                "program": str(job.program),
                "backend": job.backend,
                "part": job.part,
                "bucket": job.bucket,
                "settings": to_json(CompileSettings, job.settings),
                "partitioner": None if job.partitioner is None else to_json(PartitionerConfig, job.partitioner),
                "directory": str(job.directory),
            }
        )
        if "seconds" in reply:
            return CompileResult(job, reply["seconds"], disk_size(job.directory))
        if "refused" in reply:
            return CompileFailure(job, reply["refused"])
        return _failure(job, reply["crashed"], reply["log"])

    def _ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
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
                [sys.executable, "-m", f"{__package__}.compile_worker"],
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


def disk_size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
