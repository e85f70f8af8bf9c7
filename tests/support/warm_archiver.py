"""`torch-model-archiver` and `neuron-lstm` in copies of a process that has imported torch.

Importing takes more time than packaging a small model. A server process imports once and compiles the recurrent library
once, and a copy of it (`fork`) runs each command. Packaging is not supervised by a second process here: tests of that
start the command itself.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from torchserve_neuron_lstm.archiver_ext import archive_command, cli, hook, supervise
from torchserve_neuron_lstm.backends.native import build
from torchserve_neuron_lstm.backends.registry import get_backend

_ONE_AT_A_TIME = threading.Lock()
_AT_START = ("PYTHON", "OMP_", "MKL_", "LD_", "TORCH", "CXX", "PATH")
"""Beginnings of the names of variables that are read when a process starts, or when torch is imported."""
_IMPORTED = (
    "model_archiver.model_packaging",
    "torch._dynamo",
    "torch.export._trace",
    "torch.onnx._internal.exporter._core",
    "torchserve_neuron_lstm.archiver_ext.package",
    "torchserve_neuron_lstm.archiver_ext.report",
)


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one of the two commands in a folder; both outputs are captured.

    It runs in a process of its own where a variable differs that has an effect only when a process starts.
    """
    for name in {*environment, *os.environ}:
        if name.startswith(_AT_START) and environment.get(name) != os.environ.get(name):
            program = [str(Path(sys.executable).with_name(Path(command[0]).name)), *command[1:]]
            return subprocess.run(
                program, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
            )
    with tempfile.TemporaryDirectory() as outputs:
        task = {"command": list(command), "folder": str(folder), "environment": dict(environment), "outputs": outputs}
        with _ONE_AT_A_TIME:  # fixtures package in several threads
            decisive = sorted((name, value) for name, value in os.environ.items() if name.startswith(_AT_START))
            code = _server(tuple(decisive)).run(task)
        stdout, stderr = (Path(outputs, name).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess(command, code, stdout, stderr)


@cache
def _server(environment: tuple[tuple[str, str], ...]) -> _Server:
    """The server for these variables. It ends with this process, which closes its input."""
    return _Server()


class _Server:
    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self._end)

    def run(self, task: Mapping[str, object]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def _end(self) -> None:
        with self._process as process:
            process.terminate()


def serve() -> None:
    """Run the commands that standard input names, each in a copy of this process."""
    del sys.path[0]  # the folder of this file
    hook.install()
    for name in _IMPORTED:
        import_module(name)
    if get_backend("native").unavailable() is None:
        with tempfile.TemporaryDirectory() as folder:
            build.build(Path(folder))
    gc.set_threshold(10_000)  # as packaging sets it
    gc.freeze()  # what was imported stays: a search for garbage would copy its memory into each copy
    for line in sys.stdin:
        copy = os.fork()
        if copy == 0:
            os._exit(_command(**json.loads(line)))
        _, status = os.waitpid(copy, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _command(command: Sequence[str], folder: str, environment: Mapping[str, str], outputs: str) -> int:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(outputs, name), os.O_WRONLY | os.O_CREAT), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.argv[:] = [str(part) for part in command]
    supervise.archive_supervised = archive_command.archive
    try:
        return _main(sys.argv[0])
    except SystemExit as end:
        return _exit_code(end)
    except BaseException:  # noqa: BLE001 - the last line of a process
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _exit_code(end: SystemExit) -> int:
    if isinstance(end.code, str):
        sys.stderr.write(f"{end.code}\n")
        return 1
    return end.code or 0


def _main(command: str) -> int:
    if Path(command).name == "neuron-lstm":
        return cli.main()
    import_module("model_archiver.model_packaging").generate_model_archive()
    return 0


if __name__ == "__main__":
    serve()
