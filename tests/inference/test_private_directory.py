import errno
import fcntl
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from forks import in_fork

from torchserve_neuron_lstm.inference.private_directory import private_directory

HOLDER = """
import sys
from pathlib import Path
from torchserve_neuron_lstm.inference.private_directory import private_directory
with private_directory(Path(sys.argv[1])) as directory:
    (directory / "file").write_text("content")
    print(directory, flush=True)
    sys.stdin.read()
"""


def test_it_is_this_users_alone_and_deleted_at_the_end(tmp_path: Path) -> None:
    def use() -> None:
        with private_directory(tmp_path) as directory:
            assert directory.parent == tmp_path
            assert directory.stat().st_mode & 0o777 == 0o700
            (directory / "file").write_text("content")
            raise KeyError

    with pytest.raises(KeyError):
        use()

    assert [*tmp_path.iterdir()] == []


def test_the_next_process_deletes_what_a_killed_one_left(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        with private_directory(tmp_path):
            assert (held / "file").read_text() == "content"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert held.is_dir()

    with private_directory(tmp_path) as directory:
        assert [*tmp_path.iterdir()] == [directory]


def test_what_only_has_the_name_of_one_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".neuron-lstm-private-link").symlink_to(kept)
    (folder / ".neuron-lstm-private-file").touch()

    with private_directory(folder):
        pass

    assert sorted(one.name for one in folder.iterdir()) == [".neuron-lstm-private-file", ".neuron-lstm-private-link"]
    assert (kept / "file").exists()


def test_directories_made_at_once_do_not_delete_each_other(tmp_path: Path) -> None:
    def use(number: int) -> str:
        with private_directory(tmp_path) as directory:
            (directory / "file").write_text(str(number))
            with private_directory(tmp_path):
                return (directory / "file").read_text()

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(use, range(200))] == [str(number) for number in range(200)]
    assert [*tmp_path.iterdir()] == []


def test_one_that_is_deleted_before_its_lock_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a process that takes it for an abandoned one."""
    lock = fcntl.flock
    deleted: list[Path] = []

    def delete_the_first(descriptor: int, operation: int) -> None:
        if not deleted:
            deleted.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            deleted[0].rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", delete_the_first)
    with private_directory(tmp_path) as directory:
        assert directory.is_dir()
        assert directory not in deleted


def test_a_file_system_without_locks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a process that can lock at last take the directory for an abandoned one."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        first = private_directory(tmp_path)
        directory = first.__enter__()
    with private_directory(tmp_path):
        assert directory.is_dir()
    first.__exit__(None, None, None)
    assert [*tmp_path.iterdir()] == []


def test_a_fork_leaves_the_directory_to_its_parent(tmp_path: Path) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(private_directory(tmp_path))
        assert in_fork(stack.close)
        assert directory.is_dir()

    assert [*tmp_path.iterdir()] == []
