from __future__ import annotations

import fcntl
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

from torchserve_neuron_lstm.backends.compilation import fork_server
from torchserve_neuron_lstm.backends.compilation.fork_server import ForkedProcess, ForkServer, ForkServerDied
from torchserve_neuron_lstm.backends.compilation.job import CompileFailure, CompileJob, CompileOutcome, CompileResult
from torchserve_neuron_lstm.backends.compilation.processes import CompileProcess
from torchserve_neuron_lstm.backends.subprocesses import package_root, python_command
from torchserve_neuron_lstm.bucketing.shapes import Bucket


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.stop()


@pytest.fixture
def processes(server: ForkServer, tmp_path: Path) -> Iterator[Callable[[str], CompileProcess]]:
    made: dict[str, CompileProcess] = {}
    yield lambda name: made.setdefault(name, CompileProcess(server, tmp_path / name))
    for process in made.values():
        process.stop()
        process.close()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileJob:
    """A program for an engine that a folder of PYTHONPATH has; the path is relative."""
    odd_engines.install(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", python_path("site"))
    program = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(torch.nn.Identity(), (torch.zeros(2),)), program)
    return CompileJob("good", "sequence", Bucket(1, 2), program, tmp_path / "compiled")


@pytest.fixture
def compiled(
    job: CompileJob, processes: Callable[[str], CompileProcess], tmp_path: Path
) -> Callable[[str], CompileOutcome]:
    return lambda name: processes(name).compile(replace(job, directory=tmp_path / f"by_{name}"))


def server_pid(server: ForkServer) -> int:
    assert server._process is not None
    return server._process.pid


@pytest.mark.ci
def test_each_process_has_the_environment_of_its_start(
    compiled: Callable[[str], CompileOutcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOD_PIDS", str(tmp_path / "first"))
    first = compiled("one")
    monkeypatch.setenv("GOOD_PIDS", str(tmp_path / "second"))
    second = compiled("two")
    monkeypatch.delenv("PYTHONPATH")
    third = compiled("three")

    assert isinstance(first, CompileResult)
    assert isinstance(second, CompileResult)
    assert len((tmp_path / "first").read_text().split()) == len((tmp_path / "second").read_text().split()) == 1
    assert isinstance(third, CompileFailure)
    assert "there is no backend 'good'" in third.reason


def test_a_server_that_was_killed_is_started_again(
    server: ForkServer, job: CompileJob, processes: Callable[[str], CompileProcess]
) -> None:
    """The job that waited for it is compiled all the same."""
    server.prepare()
    killed = server_pid(server)
    os.kill(killed, signal.SIGSTOP)
    process = processes("one")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(process.compile, job)
        wait_for(lambda: process._process is not None)
        os.kill(killed, signal.SIGKILL)
        assert isinstance(waiting.result(), CompileResult)
    assert server_pid(server) != killed


def test_compilation_is_stopped_while_the_server_imports(
    server: ForkServer, job: CompileJob, processes: Callable[[str], CompileProcess]
) -> None:
    """Nobody waits for the end of the import."""
    server.prepare()
    os.kill(server_pid(server), signal.SIGSTOP)
    process = processes("one")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(process.compile, job)
        wait_for(lambda: process._process is not None)
        process.stop()
        with pytest.raises(RuntimeError, match="compilation was stopped"):
            waiting.result()


def test_a_server_that_ends_before_it_starts_a_process_is_told(server: ForkServer) -> None:
    """Whoever waits for the process gets the reason."""
    server.prepare()
    os.kill(server_pid(server), signal.SIGSTOP)
    process = server.start(Path("/"), Path("/dev/null"))
    os.kill(server_pid(server), signal.SIGKILL)

    with pytest.raises(ForkServerDied, match="the process that forks them ended"):
        process.wait()
    process.close()


def with_code(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(module: str, function: str) -> list[str]:
        *python, main = python_command(module, function)
        return [*python, f"{code}; {main}"]

    monkeypatch.setattr(fork_server, "python_command", command)


@pytest.mark.ci
def test_the_server_imports_from_the_path_of_its_caller(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there_alone.py").touch()
    monkeypatch.setattr(os, "environ", {**os.environ, "PYTHONPATH": python_path(tmp_path), "": "nameless"})
    with_code("import there_alone", monkeypatch)
    process = server.start(tmp_path, tmp_path / "log")
    process.stdin.close()

    assert process.wait() == 0
    process.close()


@pytest.mark.ci
def test_a_system_without_room_for_a_process_is_told(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on: there may be room later."""
    full = "def fork(): raise OSError(11, 'no room')"
    with_code(f"import os; exec({full!r}); os.fork = fork", monkeypatch)
    process = server.start(tmp_path, tmp_path / "log")

    with pytest.raises(ForkServerDied, match="or the system has no room for another one"):
        process.wait()
    process.close()
    assert is_running(server_pid(server))


@pytest.mark.ci
def test_a_process_that_could_not_use_cuda_is_started_anew(
    compiled: Callable[[str], CompileOutcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA refuses forks once it was initialized: another interpreter takes the place of the process."""
    with_code("import torch; torch.cuda._is_in_bad_fork = lambda: True", monkeypatch)
    monkeypatch.setenv("GOOD_PIDS", str(tmp_path / "pids"))

    assert isinstance(compiled("one"), CompileResult)
    assert (
        b"-m\0torchserve_neuron_lstm.backends.compilation.forking"
        in Path(f"/proc/{(tmp_path / 'pids').read_text().strip()}/cmdline").read_bytes()
    )


@pytest.mark.ci
def test_processes_end_with_whoever_started_them(server: ForkServer, tmp_path: Path) -> None:
    process = server.start(tmp_path, tmp_path / "log")
    pid, serving = process.pid, server_pid(server)
    process.stdin.close()

    assert process.wait() == 0
    assert not is_running(pid)
    assert server._requests is not None
    server._requests.close()
    wait_for(lambda: not is_running(serving))
    process.close()


def test_a_server_without_processes_is_not_started(server: ForkServer) -> None:
    assert server._process is None
    server.stop()
    server.stop()


_REPORTED = """
import os
from torchserve_neuron_lstm.backends.compilation.fork_server import ForkedProcess
files = [os.pipe() for _ in range(3)]
os.write(files[2][1], b"1234\\n5\\n")
os.close(files[2][1])
process = ForkedProcess(files[0][1], files[1][0], files[2][0])
print(process.poll(), process.wait(), process.pid)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ForkedProcess]:
    with fork_server.fork_server() as server:
        process = server.start(tmp_path, tmp_path / "log")
        yield process
        process.close()


def test_the_id_is_read_before_the_exit_code_without_asserts_too() -> None:
    """`python -O` leaves asserts out."""
    command = [sys.executable, "-O", "-c", _REPORTED]
    environment = {**os.environ, "PYTHONPATH": python_path(package_root())}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert ended.stdout == "5 5 1234\n"


def test_a_file_with_a_high_number_is_polled() -> None:
    """`select` takes those below 1,024 alone, and a server may have more files open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 2048), limit[1]))
    try:
        (_, stdin), (stdout, _), (low, report) = (os.pipe() for _ in range(3))
        process = ForkedProcess(stdin, stdout, fcntl.fcntl(low, fcntl.F_DUPFD, 1500))
        os.write(report, b"1234\n")
        assert process.pid == 1234
        assert process.poll() is None
        os.write(report, b"-9\n")
        assert process.poll() == -9
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    process.close()


def test_a_killed_process_is_reported_with_its_signal(process: ForkedProcess) -> None:
    assert process.poll() is None
    assert os.getpgid(process.pid) == process.pid
    process.kill()
    assert process.poll() == process.wait() == -signal.SIGKILL


def test_a_process_that_ended_is_not_killed(process: ForkedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another group may have its number."""
    process.stdin.close()
    assert process.wait() == 0

    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    process.kill()
    assert killed == []


def test_a_process_is_killed_while_another_thread_waits_for_its_end(process: ForkedProcess) -> None:
    assert process.pid
    with ThreadPoolExecutor(1) as thread:
        code = thread.submit(process.wait)
        wait_for(process._ending.locked)
        process.kill()

    assert process.wait() == code.result() == -signal.SIGKILL


def test_a_process_ends_when_nobody_reads_its_report(process: ForkedProcess) -> None:
    """Whoever started it may have been killed in the middle of a job."""
    pid = process.pid
    process._report.close()

    wait_for(lambda: not is_running(pid))
    assert not process.stdin.closed
