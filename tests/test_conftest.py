"""The settings that all tests share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_IN_THE_BACKGROUND = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path.insert(0, {folder!r})
import conftest
conftest.pytest_unconfigure()
command = [sys.executable, "-c", "import signal, sys; sys.stdout.write(str(signal.getsignal(signal.SIGINT)))"]
sys.stdout.write(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
"""


def test_commands_of_tests_in_the_background_can_be_interrupted() -> None:
    """Tests that a shell started in the background, with SIGINT ignored, start commands that Ctrl-C ends."""
    code = _IN_THE_BACKGROUND.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "<built-in function default_int_handler>"
