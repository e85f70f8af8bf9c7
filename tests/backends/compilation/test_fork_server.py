import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import odd_engines
import pytest
import torch
from python_path import python_path
from running import is_running
from waiting import wait_for

from torchserve_neuron_lstm.backends.compilation import pool
from torchserve_neuron_lstm.backends.compilation.job import CompileFailure, CompileJob, CompileOutcome, CompileResult
from torchserve_neuron_lstm.backends.compilation.pool import CompileProcesses, ForkServer
from torchserve_neuron_lstm.backends.subprocesses import python_command
from torchserve_neuron_lstm.bucketing.shapes import Bucket

Compile = Callable[..., CompileOutcome]


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.end()


@pytest.fixture
def processes(server: ForkServer, tmp_path: Path) -> Iterator[CompileProcesses]:
    processes = CompileProcesses(server, tmp_path / "scratch")
    yield processes
    processes.stop()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileJob:
    """A program for an engine that a folder of PYTHONPATH has; the path is relative."""
    odd_engines.install(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", python_path("site"))
    monkeypatch.setenv("GOOD_PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("SLOW_PIDS", str(tmp_path / "pids"))
    program = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(torch.nn.Identity(), (torch.zeros(2),)), program)
    return CompileJob("good", "sequence", Bucket(1, 2), program, tmp_path / "compiled")


@pytest.fixture
def compiled(processes: CompileProcesses, job: CompileJob, tmp_path: Path) -> Compile:
    """Compile once more, in a process that is kept."""

    def compile_once() -> CompileOutcome:
        (tmp_path / "pids").unlink(missing_ok=True)
        folder = tmp_path / f"compiled{len(list(tmp_path.glob('compiled*')))}"
        folder.mkdir()
        processes.start(replace(job, directory=folder))
        (outcome,) = processes.next_outcomes()
        return outcome

    return compile_once


def server_pid(server: ForkServer) -> int:
    assert server._process is not None
    return server._process.pid


def pid_of(tmp_path: Path) -> int:
    return int((tmp_path / "pids").read_text().split()[0])


@pytest.mark.ci
def test_each_process_has_the_environment_of_its_start(
    processes: CompileProcesses, compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(compiled(), CompileResult)
    processes.stop()
    monkeypatch.delenv("PYTHONPATH")
    second = compiled()

    assert isinstance(second, CompileFailure)
    assert "there is no backend 'good'" in second.reason


@pytest.mark.ci
def test_a_process_that_ended_between_two_jobs_is_replaced(
    processes: CompileProcesses, compiled: Compile, tmp_path: Path
) -> None:
    assert isinstance(compiled(), CompileResult)
    first = pid_of(tmp_path)
    os.kill(first, signal.SIGKILL)
    wait_for(processes._idle[0].connection.poll)

    assert isinstance(compiled(), CompileResult)
    assert pid_of(tmp_path) != first


@pytest.mark.ci
def test_a_server_that_was_killed_is_started_again(
    server: ForkServer, processes: CompileProcesses, compiled: Compile, job: CompileJob
) -> None:
    """The job that waited for it is told why."""
    processes.prepare()
    killed = server_pid(server)
    os.kill(killed, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(compiled)
        wait_for(lambda: processes.busy == 1)
        os.kill(killed, signal.SIGKILL)
        failure = waiting.result()

    assert isinstance(failure, CompileFailure)
    assert "the process that forks them ended" in failure.reason
    assert isinstance(compiled(), CompileResult)
    assert server_pid(server) != killed


def test_compilation_is_stopped_while_the_server_imports(
    server: ForkServer, processes: CompileProcesses, job: CompileJob
) -> None:
    """Nobody waits for the end of the import."""
    processes.prepare()
    os.kill(server_pid(server), signal.SIGSTOP)
    processes.start(job)
    processes.abort()

    assert processes.busy == 0
    assert server._process is None


@pytest.mark.ci
def test_a_process_that_compiles_is_stopped_with_what_it_started(
    processes: CompileProcesses, job: CompileJob, tmp_path: Path
) -> None:
    job.make_folders()
    processes.start(replace(job, backend="slow"))
    wait_for(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().endswith("\n"))
    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert os.getpgid(started[0]) == started[0]
    processes.stop()

    assert not is_running(started[0])
    wait_for(lambda: not is_running(started[1]))


def with_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(module: str, function: str) -> list[str]:
        *python, main = python_command(module, function)
        return [*python, f"{code}; {main}"]

    monkeypatch.setattr(pool, "python_command", command)


@pytest.mark.ci
def test_the_server_imports_from_the_path_of_its_caller(
    compiled: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there_alone.py").touch()
    monkeypatch.setattr(os, "environ", {**os.environ, "PYTHONPATH": python_path(tmp_path, "site"), "": "nameless"})
    with_code("import there_alone", monkeypatch)

    assert isinstance(compiled(), CompileResult)


@pytest.mark.ci
def test_a_system_without_room_for_a_process_is_told(
    server: ForkServer, compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on: there may be room later."""
    full = "def fork(): raise OSError(11, 'no room')"
    with_code(f"import os; exec({full!r}); os.fork = fork", monkeypatch)
    outcome = compiled()

    assert isinstance(outcome, CompileFailure)
    assert "or the system has no room for another one" in outcome.reason
    assert is_running(server_pid(server))


_PACKAGING = """
import sys
from pathlib import Path
from torchserve_neuron_lstm.backends.compilation.job import CompileJob
from torchserve_neuron_lstm.backends.compilation.pool import compile_all, compile_processes
from torchserve_neuron_lstm.bucketing.shapes import Bucket
folder = Path(sys.argv[1])
jobs = [CompileJob("slow", "sequence", Bucket(1, 2), folder / "program.pt2", folder / "compiled")]
with compile_processes(folder / "scratch") as processes:
    compile_all(jobs, processes, print)
"""


@pytest.mark.ci
@pytest.mark.usefixtures("job")
def test_processes_end_with_whoever_started_them(tmp_path: Path) -> None:
    """Packaging may be killed in the middle of a job."""
    pids = tmp_path / "pids"
    with subprocess.Popen([sys.executable, "-c", _PACKAGING, str(tmp_path)]) as packaging:
        wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
        packaging.kill()

    wait_for(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


def test_a_server_without_processes_is_not_started(server: ForkServer) -> None:
    assert server._process is None
    server.end()
    server.end()


@pytest.mark.ci
def test_a_process_can_have_a_file_with_a_high_number(compiled: Compile) -> None:
    """`select` takes those below 1,024 alone, and a server may have more files open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 2048), limit[1]))
    files = [os.dup(0) for _ in range(1100)]
    try:
        assert isinstance(compiled(), CompileResult)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
