import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from torchserve_neuron_lstm.archiver_ext.archive import workspace
from torchserve_neuron_lstm.archiver_ext.archive.workspace import exchange, replace_atomically, write_output
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.inference.errors import ArchiveError


def test_temporary_files_go_there_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    before, directory = dict(os.environ), tempfile.gettempdir()
    with workspace.temporary_files_in(tmp_path):
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


def folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def test_the_new_folder_is_at_the_path_of_the_old_one(tmp_path: Path) -> None:
    new, old = folder(tmp_path / "new", "new"), folder(tmp_path / "old", "old")
    replace_atomically(new, old)

    assert (old / "file").read_text() == "new"
    assert (new / "file").read_text() == "old"


def test_a_file_replaces_a_file_and_a_first_folder_needs_no_old_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    replace_atomically(tmp_path / "a", tmp_path / "b")
    replace_atomically(folder(tmp_path / "c", "first"), tmp_path / "d")

    assert (tmp_path / "b").read_text() == "new"
    assert (tmp_path / "d" / "file").read_text() == "first"
    assert len(list(tmp_path.iterdir())) == 2


def test_two_paths_are_exchanged_in_one_step_or_stay(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "one", "1"), folder(tmp_path / "other", "2")

    exchange(one, other)
    assert (one / "file").read_text() == "2"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        exchange(one, tmp_path / "nowhere")
    assert (one / "file").read_text() == "2"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL])
def test_a_folder_stays_where_paths_cannot_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As by NFS."""
    new, old = folder(tmp_path / "new", "new"), folder(tmp_path / "old", "old")
    library = SimpleNamespace(renameat2=lambda *_: ctypes.set_errno(number) or -1)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    with pytest.raises(PackagingError, match="write to another path"):
        replace_atomically(new, old)
    assert (old / "file").read_text() == "old"


def test_a_file_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "model-config.yaml"
    file.write_text("before")

    def fail(written: BinaryIO) -> None:
        written.write(b"half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"), workspace.open_output(file) as written:
        fail(written)

    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("model-config.yaml", "before")]


def test_a_replaced_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    write_output(link, b"after")

    assert link.is_symlink()
    assert target.read_text() == "after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_device_is_written_to_directly_and_a_missing_folder_is_named(tmp_path: Path) -> None:
    write_output(Path("/dev/null"), b"nothing")
    assert Path("/dev/null").is_char_device()

    with pytest.raises(ArchiveError) as refused:
        write_output(tmp_path / "none" / "file", b"")
    assert str(refused.value) == f"there is no folder {tmp_path / 'none'}"
