"""Parallel compilation, in as many processes as there are cores.

When packaging stops (an unsupported program, a failure, Ctrl-C), the processes end, with the compilers that they
started, and leave no files behind.

A single engine whose programs serve every shape compiles them in this process, which has imported torch already. Beside
other engines it has a separate process: if that ends, the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from ..exported_program import load_program
from ..registry import ENGINES
from .job import CompileFailure, CompileJob, CompileOutcome, compile_job
from .processes import CompileProcess, CompileProcesses


def compile_all(
    jobs: Sequence[CompileJob], processes: CompileProcesses, report: Callable[[CompileOutcome], None]
) -> list[CompileOutcome]:
    """Compile all jobs.

    After a job fails, the other jobs of its engine are skipped; when no engine is left, all processes are stopped.
    `report` is called with each result as it arrives.
    """
    if _are_compiled_here(jobs):
        return _compile_here(jobs, report)
    engines = {job.backend for job in jobs}
    results: list[CompileOutcome] = []
    pending = list(jobs)
    running: dict[Future[CompileOutcome], CompileProcess] = {}
    # Programs for any shape are compiled in less time than a further process takes to start.
    free = processes.take(len({(job.backend, job.bucket) for job in pending}))
    with ThreadPoolExecutor(max(1, len(free))) as threads:
        try:
            while engines and (pending or running):
                while free and pending:
                    worker = free.pop()
                    running[threads.submit(worker.compile, pending.pop(0))] = worker
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    free.append(running.pop(done))
                    results.append(done.result())
                    report(results[-1])
                engines -= {result.job.backend for result in results if isinstance(result, CompileFailure)}
                pending = [job for job in pending if job.backend in engines]
        except BaseException:
            processes.stop()  # also a job that Ctrl-C kept from being noted
            raise
        if running:
            processes.stop()
    processes.close()
    return results


def _are_compiled_here(jobs: Sequence[CompileJob]) -> bool:
    """Whether the jobs, if there are any, are those of one engine of this package, and few."""
    engines = {job.backend for job in jobs}
    few = all(job.bucket is None and job.partitioner is None for job in jobs)
    return few and len(engines) <= 1 and engines <= ENGINES.keys()


def _compile_here(jobs: Sequence[CompileJob], report: Callable[[CompileOutcome], None]) -> list[CompileOutcome]:
    results: list[CompileOutcome] = []
    for job in jobs:
        job.make_folders()
        results.append(compile_job(job, load_program))
        report(results[-1])
        if isinstance(results[-1], CompileFailure):
            break
    return results
