import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from waiting import wait_for

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


@pytest.fixture(autouse=True)
def _server(tmp_path: Path) -> None:
    (tmp_path / "ts").mkdir()
    (tmp_path / "ts" / "__init__.py").touch()
    (tmp_path / "ts" / "model_server.py").write_text(SERVER)


def test_no_process_is_left_when_the_command_is_killed(tmp_path: Path) -> None:
    """SIGKILL, as the system sends it when memory runs out. TorchServe would keep its ports."""
    with subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        pids = [int(word) for word in command.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(command.pid, signal.SIGKILL)
        wait_for(lambda: not any(map(runs, pids)), 20)


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


PROXY_COMMAND = """
import sys
from pathlib import Path
from torchserve_neuron_lstm.hosts.torchserve.process import running

with running(Path(sys.argv[1]), [], {"PYTHONPATH": sys.argv[1]}, print) as server:
    print("ready:", server.wait_until_ready(sys.argv[2], "sums"))
"""


LOG_COMMAND = """
import sys
from pathlib import Path
from torchserve_neuron_lstm.archiver_ext.commands import print_log
from torchserve_neuron_lstm.hosts.torchserve.process import running

with running(Path(sys.argv[1]), [], {"PYTHONPATH": sys.argv[1]}, print_log) as server:
    server.wait()
"""


def test_a_terminal_obeys_nothing_in_the_log(tmp_path: Path) -> None:
    """The access log has the path of a request as any client sent it."""
    text = b"GET /\x1b]0;x\x07\x1b[2J\r500 \xff \xc2\x9b31m\xe2\x80\xae a\\tb \xc3\xa4\n"
    server = f"import os\n\ndef start():\n    os.write(1, {text!r})\n"
    (tmp_path / "ts" / "model_server.py").write_text(server)
    done = subprocess.run(
        [sys.executable, "-c", LOG_COMMAND, str(tmp_path)], capture_output=True, timeout=60, check=False
    )

    shown = "GET /\\x1b]0;x\\x07\\x1b[2J\\r500 \ufffd \\x9b31m\\u202e a\\tb \xe4\n"
    assert done.stderr.decode().startswith(shown)


class Answering(BaseHTTPRequestHandler):
    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        body = b'[{"minWorkers": 1, "workers": [{"status": "READY"}]}]'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def answering() -> Iterator[tuple[str, list[str]]]:
    """A server that answers as TorchServe does; its address, and the paths that it was asked for."""
    paths: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Answering,), {"paths": paths}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_proxy_of_the_environment_is_not_asked(tmp_path: Path) -> None:
    """It would see the token of the management API, and does not reach this machine."""
    with answering() as (management, asked), answering() as (proxy, seen):
        environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
        command = [sys.executable, "-c", PROXY_COMMAND, str(tmp_path), management]
        done = subprocess.run(
            command, env={**environment, "http_proxy": proxy}, capture_output=True, text=True, timeout=60, check=True
        )

    assert "ready: 1" in done.stdout
    assert (asked, seen) == (["/models/sums"], [])
