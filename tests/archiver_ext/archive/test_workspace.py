"""A private working directory, removed afterwards with all references to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.archive.workspace import temporary_files_in
from torchserve_neuron_lstm.inference.private_directory import private_directory


def test_a_private_directory_is_for_its_user_alone_and_goes_with_all_in_it(tmp_path: Path) -> None:
    """It is removed even after an error."""
    with suppress(KeyError), private_directory(tmp_path) as directory:
        (directory / "deep").mkdir()
        assert directory.stat().st_mode & 0o777 == 0o700
        assert directory.parent == tmp_path
        raise KeyError

    assert list(tmp_path.iterdir()) == []


def test_temporary_files_go_there_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    """This holds for Python and for programs; environment variables set by engines are removed too."""
    before, directory = dict(os.environ), tempfile.gettempdir()
    with temporary_files_in(tmp_path):
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(tmp_path)
        os.environ["SOME_ENGINES_CACHE"] = str(tmp_path / "cache")

    assert tempfile.gettempdir() == directory
    assert dict(os.environ) == before


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from torchserve_neuron_lstm.archiver_ext.archive.workspace import Terminated, raise_on_termination
from torchserve_neuron_lstm.inference.private_directory import private_directory

number, folder = signal.Signals(int(sys.argv[1])), Path(sys.argv[2])
signal.signal(number, signal.SIG_DFL)  # a shell may have it ignored, as nohup does
try:
    with raise_on_termination(), private_directory(folder):
        os.kill(os.getpid(), number)
except Terminated as end:
    print(end.signal is number, list(folder.iterdir()), signal.getsignal(number) is signal.SIG_DFL, flush=True)
os.kill(os.getpid(), number)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_unwinds_the_stack(tmp_path: Path, number: signal.Signals) -> None:
    """The directories are removed, and then the signal has its former effect.

    In another process: one that runs tests would end, and its other tests would be lost.
    """
    command = [sys.executable, "-c", INTERRUPTED, str(int(number)), str(tmp_path)]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (ended.returncode, ended.stderr) == (-number, "")
    assert ended.stdout == "True [] True\n"


IGNORED = """
import os, signal
from torchserve_neuron_lstm.archiver_ext.archive.workspace import raise_on_termination

signal.signal(signal.SIGHUP, signal.SIG_IGN)
with raise_on_termination():
    os.kill(os.getpid(), signal.SIGHUP)
print("goes on", signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
"""


def test_a_hangup_that_nohup_ignores_does_not_end_a_command() -> None:
    """It was started to go on after the terminal is closed."""
    ended = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True, check=False, timeout=60)

    assert (ended.returncode, ended.stdout) == (0, "goes on True\n")
