"""Program of the fork server: imports what compiling processes need, and forks one for each request.

A compiling process reads one job from each line of standard input, and writes the outcome of each to standard output.
It ends when its input ends, so that it cannot outlive the packaging that started it. All output of an engine goes to
standard error.

A request is a byte on the socket, with four files: standard input, output and error of the process, and a pipe for its
process id and its exit code. The parent of a forked process cannot be the one that asked for it, so another forked
process waits for its end and reports it. It also ends the compilers that the process has started, and the process
itself if the reader of the report has ended.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import select
import signal
import socket
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from typing import NoReturn

from ..exported_program import load_program
from .job import CompileJob, compile_job


def main() -> None:
    """Fork processes until the socket ends; in each of them, compile jobs until standard input ends."""
    import torch._dynamo  # which reading a program imports; it takes as long as torch

    with socket.socket(fileno=int(sys.argv[1])) as requests:
        files = _await_fork(requests)
    if files is None:
        return
    _take(files)
    if torch.cuda._is_in_bad_fork():  # one of the imports has initialized CUDA, which a forked process cannot use
        os.execv(sys.executable, [sys.executable, "-m", __name__])  # noqa: S606  no shell is needed
    _compile_jobs()


def _await_fork(requests: socket.socket) -> list[int] | None:
    """Return in each forked process, with its files; in the server, return None at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that report are not waited for
    gc.freeze()  # what was imported stays: a search for garbage would copy its memory into each process
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1, 4)
        if not message:
            return None
        try:
            is_forked = _fork() == 0
        except OSError as error:  # whoever asked finds its report closed
            sys.stderr.write(f"no process can be forked: {error}\n")
            is_forked = False
        if is_forked:
            requests.close()
            *streams, report = files
            _fork_reported(streams, report)
            return streams
        for file in files:
            os.close(file)


def _fork() -> int:
    with warnings.catch_warnings():
        # The other threads are those of linear algebra, whose library starts them again.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _fork_reported(streams: list[int], report: int) -> None:
    """Fork the process, in which alone this returns; the other one reports its id and its end, and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = _fork()
    if pid != 0:
        for file in streams:
            os.close(file)
        _report(pid, report)
    os.close(report)


def _report(pid: int, report: int) -> NoReturn:
    code = 1
    try:
        with suppress(ProcessLookupError, PermissionError):  # it ended
            os.setpgid(pid, pid)  # the process does the same: whoever reads the id can end the group at once
        os.write(report, f"{pid}\n".encode())
        _await_end(pid, report)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # until it is waited for, no other process group has its number
        _, status = os.waitpid(pid, 0)
        os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        code = 0
    finally:
        os._exit(code)  # the exit handlers are the server's


def _await_end(pid: int, report: int) -> None:
    """Wait until the process has ended, or the reader of its report."""
    try:
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old system: a job whose caller has ended is compiled to its end
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    events = select.poll()
    events.register(process, select.POLLIN)
    events.register(report, 0)  # an error, which need not be asked for, tells that its reader has closed it
    events.poll()


def _take(streams: list[int]) -> None:
    """Take the standard streams, the environment and the directory that were asked for."""
    os.setpgid(0, 0)
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()  # and nothing beyond it, which is for the worker
    if not line:
        sys.exit()  # whoever asked for it has ended
    asked = json.loads(line)
    of_server = _python_path()
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["directory"])
    tempfile.tempdir = None
    own = _python_path()
    sys.path[:] = [*own, *(path for path in sys.path if path not in {*own, *of_server})]


def _python_path() -> list[str]:
    return os.environ["PYTHONPATH"].split(os.pathsep)


def _compile_jobs() -> None:
    """Compile jobs until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # standard output is for replies: everything else that is written there goes to standard error
    load = cache(load_program)
    for line in sys.stdin:
        job: CompileJob = pickle.loads(bytes.fromhex(line))  # noqa: S301 - of the process that started this one
        print(pickle.dumps(compile_job(job, load)).hex(), file=replies, flush=True)


if __name__ == "__main__":
    _compile_jobs()
