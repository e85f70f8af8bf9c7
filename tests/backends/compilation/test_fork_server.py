"""Fork server: one import for all compiling processes, each with an environment and an end of its own."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import odd_engines
import pytest
import torch
from python_path import python_path
from waiting import wait_for

from torchserve_neuron_lstm.backends.compilation import fork_server
from torchserve_neuron_lstm.backends.compilation.fork_server import ForkServer
from torchserve_neuron_lstm.backends.compilation.forked_process import ForkServerDied
from torchserve_neuron_lstm.backends.compilation.job import CompileFailure, CompileJob, CompileOutcome, CompileResult
from torchserve_neuron_lstm.backends.compilation.process import CompileProcess
from torchserve_neuron_lstm.backends.subprocesses import python_command
from torchserve_neuron_lstm.bucketing.shapes import Bucket


@pytest.fixture
def server() -> Iterator[ForkServer]:
    """A server of this test alone."""
    server = ForkServer()
    yield server
    server.stop()


@pytest.fixture
def compiled(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], CompileOutcome]]:
    """Compile a program with an engine in the process of a name."""
    monkeypatch.setenv("PYTHONPATH", python_path(odd_engines.install(tmp_path / "site")))
    program = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(torch.nn.Identity(), (torch.zeros(2),)), program)
    processes: dict[str, CompileProcess] = {}
    folders = (tmp_path / f"compiled{number}" for number in itertools.count())

    def compile_with(engine: str, process: str) -> CompileOutcome:
        one = processes.setdefault(process, CompileProcess(server, tmp_path / process))
        return one.compile(CompileJob(engine, "sequence", Bucket(1, 2), program, next(folders)))

    yield compile_with
    for process in processes.values():
        process.stop()
        process.close()


def server_pid(server: ForkServer) -> int:
    """The process id of a server that runs."""
    assert server._process is not None
    return server._process.pid


def runs(pid: int) -> bool:
    """Whether a process runs, other than one that ended and was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_each_process_has_the_environment_of_its_start(
    compiled: Callable[[str, str], CompileOutcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that were set later count, and folders of PYTHONPATH with their engines."""
    monkeypatch.setenv("GOOD_PIDS", str(tmp_path / "first"))
    first = compiled("good", "one")
    monkeypatch.setenv("GOOD_PIDS", str(tmp_path / "second"))
    second = compiled("good", "two")
    monkeypatch.delenv("PYTHONPATH")
    third = compiled("good", "three")

    assert isinstance(first, CompileResult)
    assert isinstance(second, CompileResult)
    assert len((tmp_path / "first").read_text().split()) == len((tmp_path / "second").read_text().split()) == 1
    assert isinstance(third, CompileFailure)
    assert "there is no backend 'good'" in third.reason


def test_a_server_that_was_killed_is_started_again(
    server: ForkServer, compiled: Callable[[str, str], CompileOutcome]
) -> None:
    """Processes that it had started go on, and the next one gets another server."""
    compiled("good", "one")
    killed = server_pid(server)
    os.kill(killed, signal.SIGKILL)

    assert isinstance(compiled("good", "one"), CompileResult)
    wait_for(lambda: not runs(killed))
    assert isinstance(compiled("good", "two"), CompileResult)
    assert server_pid(server) != killed


def test_a_server_that_ends_before_it_starts_a_process_is_told(server: ForkServer) -> None:
    """Whoever waits for the process gets the reason."""
    server.prepare()
    os.kill(server_pid(server), signal.SIGSTOP)
    process = server.start(Path("/"), Path("/dev/null"))
    os.kill(server_pid(server), signal.SIGKILL)

    with pytest.raises(ForkServerDied, match=r"the process that starts compiling processes ended"):
        process.wait()
    process.close()


def without_cuda(module: str, function: str) -> list[str]:
    """The command of the server, in which CUDA says that it was initialized before the fork."""
    *python, code = python_command(module, function)
    return [*python, "import torch; torch.cuda._is_in_bad_fork = lambda: True; " + code]


def test_a_process_that_could_not_use_cuda_is_started_anew(
    compiled: Callable[[str, str], CompileOutcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA refuses forks once it was initialized: another interpreter takes the place of the process."""
    monkeypatch.setattr(fork_server, "python_command", without_cuda)
    monkeypatch.setenv("GOOD_PIDS", str(tmp_path / "pids"))

    assert isinstance(compiled("good", "one"), CompileResult)
    assert b"compilation.worker" in Path(f"/proc/{(tmp_path / 'pids').read_text().strip()}/cmdline").read_bytes()


def test_processes_end_with_whoever_started_them(server: ForkServer, tmp_path: Path) -> None:
    """A process whose standard input ends does so too, and the server when its socket ends."""
    process = server.start(tmp_path, tmp_path / "log")
    pid, serving = process.pid, server_pid(server)
    process.stdin.close()

    assert process.wait() == 0
    assert not runs(pid)
    assert server._requests is not None
    server._requests.close()
    wait_for(lambda: not runs(serving))
    process.close()


def test_a_killed_process_is_reported_with_its_signal(server: ForkServer, tmp_path: Path) -> None:
    """Its group ends with it."""
    process = server.start(tmp_path, tmp_path / "log")

    assert process.poll() is None
    assert os.getpgid(process.pid) == process.pid
    process.kill()
    assert process.poll() == process.wait() == -signal.SIGKILL
    process.close()


def test_a_process_is_killed_while_another_thread_waits_for_its_end(server: ForkServer, tmp_path: Path) -> None:
    """Both threads get the exit code."""
    process = server.start(tmp_path, tmp_path / "log")
    assert process.pid
    with ThreadPoolExecutor(1) as thread:
        code = thread.submit(process.wait)
        wait_for(process._ending.locked)
        process.kill()

    assert process.wait() == code.result() == -signal.SIGKILL
    process.close()


def test_a_server_without_processes_is_not_started(server: ForkServer) -> None:
    """It starts for its first process, and may be stopped twice."""
    assert server._process is None
    server.stop()
    server.stop()
