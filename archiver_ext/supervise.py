"""Packaging in a separate process: a crash in an engine's machine code is reported and cleaned up.

Compiled programs are run to verify them; a broken one kills its process without a message. The process that the user
started waits, forwards signals, and removes what is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from ..backends.subprocesses import describe_exit, package_path, python_command
from ..inference.private_directory import private_directory
from .archive.workspace import Terminated, raise_on_termination
from .errors import PackagingError
from .model_archiver import given_files

if TYPE_CHECKING:
    from .model_archiver import Flags

_PATIENCE_S = 20
_DONE = 3  # the exit code of the other process for success: the model's code may end it with 0


def archive_supervised(flags: Flags, manifest: str, *, as_json: bool = False) -> int:
    """Run `archive_command.archive` in another process. Returns its exit code; 1 if it died."""
    try:
        given_files(flags)  # before the process imports torch
    except PackagingError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    task = json.dumps({"flags": vars(flags), "manifest": manifest, "as_json": as_json})
    with private_directory() as directory:
        env = {**os.environ, "TMPDIR": str(directory), "PYTHONPATH": package_path()}
        command = python_command(__name__, supervised.__name__)
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=env, text=True, start_new_session=True) as process:
            code = _outcome(process, task)
    if code < 0:
        sys.stderr.write(
            f"error: {describe_exit(code)} while packaging, probably in the machine code of an engine; nothing was "
            f"written. Choose another one with neuron_lstm.backend, and please report this\n"
        )
    if code == 0:
        sys.stderr.write("error: the model's code ended the process (os._exit); nothing was written\n")
    return 0 if code == _DONE else max(code, 1)


def _outcome(process: subprocess.Popen[str], task: str) -> int:
    """The exit code; a signal that arrives before it is forwarded, and the process has time to clean up."""
    assert process.stdin is not None
    try:
        with raise_on_termination():
            process.stdin.write(task + "\n")
            process.stdin.flush()
            return process.wait()
    except BrokenPipeError:
        return process.wait()
    except (KeyboardInterrupt, Terminated) as end:
        process.send_signal(end.signal if isinstance(end, Terminated) else signal.SIGINT)
        try:
            return process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def supervised() -> int:
    """Run the other process: read the task, do it, and end when the outer process does."""
    from .archive_command import archive, prepare_process

    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    flags = cast("Flags", SimpleNamespace(**task["flags"]))
    return prepare_process() or archive(flags, task["manifest"], as_json=task["as_json"]) or _DONE


def _end_with_input() -> None:
    """Standard input ends when the outer process does, even if that was killed."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
