"""Program of the fork server: imports what compiling processes need, and forks one for each request.

A request is a byte on the socket, with two files: a connection, and the standard error of the process. The process
reads its directory and environment from the connection, then one job after another, and sends the outcome of each. It
ends when its input ends, so that it cannot outlive the packaging that started it.

The parent of a forked process cannot be the one that asked for it, so another forked process waits for its end, and
sends its exit code last. It also ends the process, with the compilers that it has started, when its input ends.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import NoReturn

from ..exported_program import load_program
from .job import compile_job


def main() -> None:
    """Fork processes until the socket ends; in each of them, compile jobs until its connection ends."""
    import torch._dynamo  # noqa: F401 - reading a program imports it; it takes as long as torch

    with socket.socket(fileno=int(sys.argv[1])) as requests:
        files = _await_fork(requests)
    if files is None:
        return
    connection, stderr = Connection(files[0]), files[1]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = _fork()
    if pid != 0:
        os.close(stderr)
        _report(pid, connection)
    os.setpgid(0, 0)
    for standard in (1, 2):  # an engine may print anything
        os.dup2(stderr, standard)
    os.close(stderr)
    with suppress(EOFError):
        _compile_jobs(connection)


def _await_fork(requests: socket.socket) -> list[int] | None:
    """Return in each forked process, with its files; in the server, return None at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that report are not waited for
    gc.freeze()  # what was imported stays: a search for garbage would copy its memory into each process
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1, 2)
        if not message:
            return None
        try:
            is_forked = _fork() == 0
        except OSError as error:  # whoever asked finds its connection closed
            sys.stderr.write(f"no process can be forked: {error}\n")
            is_forked = False
        if is_forked:
            os.set_inheritable(files[0], False)  # by compilers
            return files
        for file in files:
            os.close(file)


def _fork() -> int:
    with warnings.catch_warnings():
        # The other threads are those of linear algebra, whose library starts them again.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _report(pid: int, connection: Connection) -> NoReturn:
    try:
        with suppress(ProcessLookupError, PermissionError):  # it ended
            os.setpgid(pid, pid)  # the process does the same: its group can be ended at once
        _await_end(pid, connection)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # until it is waited for, no other process group has its number
        _, status = os.waitpid(pid, 0)
        connection.send(os.waitstatus_to_exitcode(status))
    finally:
        os._exit(0)  # the exit handlers are the server's


def _await_end(pid: int, connection: Connection) -> None:
    """Wait until the process has ended, or its input."""
    try:
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old system: a job whose caller has ended is compiled to its end
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return
    events = select.poll()
    events.register(process, select.POLLIN)
    events.register(connection, select.POLLRDHUP)
    events.poll()


def _compile_jobs(connection: Connection) -> NoReturn:
    """Compile jobs in the directory and with the environment that come first. Raises `EOFError`: the input ended."""
    directory, environment = connection.recv()
    server_path = _python_path()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    tempfile.tempdir = None
    path = _python_path()
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in {*path, *server_path})]
    load = cache(load_program)
    while True:
        connection.send(compile_job(connection.recv(), load))


def _python_path() -> list[str]:
    return os.environ["PYTHONPATH"].split(os.pathsep)
