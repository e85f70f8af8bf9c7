"""The servers of the examples: all are stopped, and a failed start is reported with its reason."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from archiving import ARCHIVER
from running import is_running
from torchserve_process import DidNotStart, serving
from waiting import wait_for

pytestmark = pytest.mark.ci

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS_TO_STOP = 20

HANDLER = """
class Handler:
    def initialize(self, context):
        {initialize}

    def handle(self, rows, context):
        return ["here"] * len(rows)
"""
SERVE_FOREVER = """
import sys, time
from pathlib import Path
from torchserve_process import serving

with serving(Path(sys.argv[1]), {"echo": "echo.mar"}) as server:
    print(*server.worker_pids("echo"), server.log_file, flush=True)
    time.sleep(600)
"""


def plain_archive(folder: Path, initialize: str) -> Path:
    (folder / "handler.py").write_text(HANDLER.format(initialize=initialize))
    (folder / "config.yaml").write_text("minWorkers: 1\nmaxWorkers: 1\n")
    words = "--model-name echo --version 1.0 --handler handler.py --config-file config.yaml --export-path ."
    subprocess.run([str(ARCHIVER), *words.split()], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("sign", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_stopped_program_leaves_no_server_behind(tmp_path: Path, sign: signal.Signals) -> None:
    as_exception = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
    program = subprocess.Popen(
        [sys.executable, "-c", as_exception + SERVE_FOREVER, str(plain_archive(tmp_path, "pass"))],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdout is not None
    with program.stdout:
        worker, log = program.stdout.readline().split()
    assert is_running(int(worker))
    program.send_signal(sign)
    program.wait(SECONDS_TO_STOP)
    wait_for(lambda: not is_running(int(worker)), SECONDS_TO_STOP)
    assert not Path(log).parent.exists()


def test_a_model_that_cannot_load_is_told_at_once_with_its_reason(tmp_path: Path) -> None:
    """TorchServe would retry for minutes; the error has the handler's message."""
    store = plain_archive(tmp_path, 'raise RuntimeError("the engine is on holiday")')
    began = time.monotonic()
    with (
        pytest.raises(DidNotStart, match="RuntimeError: the engine is on holiday"),
        serving(store, {"echo": "echo.mar"}, ready_seconds=100),
    ):
        pass
    assert time.monotonic() - began < 60


def test_a_missing_archive_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(DidNotStart, match=r"nowhere\.mar"), serving(tmp_path, {"echo": "nowhere.mar"}):
        pass
