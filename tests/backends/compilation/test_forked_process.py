"""Forked process: its id and its end as they are reported, and how it is killed."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from python_path import python_path
from running import is_running
from waiting import wait_for

from torchserve_neuron_lstm.backends.compilation import fork_server
from torchserve_neuron_lstm.backends.compilation.forked_process import ForkedProcess
from torchserve_neuron_lstm.backends.subprocesses import package_root

_REPORTED = """
import os
from torchserve_neuron_lstm.backends.compilation.forked_process import ForkedProcess
files = [os.pipe() for _ in range(3)]
os.write(files[2][1], b"1234\\n5\\n")
os.close(files[2][1])
process = ForkedProcess(files[0][1], files[1][0], files[2][0])
print(process.poll(), process.wait(), process.pid)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ForkedProcess]:
    """A compiling process of the fork server of all tests."""
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
    """Its group ends with it."""
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
    """Both threads get the exit code."""
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
