"""The process of TorchServe ends with the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

SERVER = """
import os, subprocess, sys

def start():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as worker:
        print(os.getpid(), worker.pid, flush=True)
"""
"""A `ts.model_server` with one worker, which asks nobody whether it is still wanted."""
COMMAND = """
import sys
from pathlib import Path
from torchserve_neuron_lstm.hosts.torchserve.process import running

home = Path(sys.argv[1])

def write(line):
    sys.stdout.write(line)
    sys.stdout.flush()

with running(home, [], {"PYTHONPATH": str(home)}, write) as server:
    server.wait()
"""


def test_no_process_is_left_when_the_command_is_killed(tmp_path: Path) -> None:
    """SIGKILL, as the system sends it when memory runs out. TorchServe would keep its ports."""
    (tmp_path / "ts").mkdir()
    (tmp_path / "ts" / "__init__.py").touch()
    (tmp_path / "ts" / "model_server.py").write_text(SERVER)
    with subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        pids = [int(word) for word in command.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(command.pid, signal.SIGKILL)
        until = time.monotonic() + 20
        while any(map(runs, pids)) and time.monotonic() < until:
            time.sleep(0.05)

        assert not any(map(runs, pids))


def runs(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
