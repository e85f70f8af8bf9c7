"""Replacement of files and folders: the old one is whole at its path, or the new one is."""

from __future__ import annotations

import errno
import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.archive import replace as module
from torchserve_neuron_lstm.archiver_ext.archive.replace import exchange, replace_atomically
from torchserve_neuron_lstm.archiver_ext.archive.workspace import Terminated
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError


def folder(path: Path, content: str) -> Path:
    """A folder with one file."""
    path.mkdir()
    (path / "file").write_text(content)
    return path


@pytest.fixture(params=["exchanged", "moved aside"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system that exchanges paths, and one that cannot."""
    if request.param == "moved aside":
        monkeypatch.setattr(module, "exchange", lambda *_: False)
    return str(request.param)


READ_ONLY = OSError(errno.EROFS, "Read-only file system")


def failing(monkeypatch: pytest.MonkeyPatch, *moves: int, error: BaseException = READ_ONLY) -> None:
    """Let these renames fail, counted from 1, where paths cannot be exchanged."""
    real: Callable[[Path, Path], Path] = Path.rename
    counted = itertools.count(1)

    def rename(self: Path, target: Path) -> Path:
        if next(counted) in moves:
            raise error
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(module, "exchange", lambda *_: False)


@pytest.mark.usefixtures("way")
def test_the_new_folder_is_at_the_path_of_the_old_one(tmp_path: Path) -> None:
    """The old one may be where the new one was made, and nothing else is left."""
    new, old = folder(tmp_path / "new", "new"), folder(tmp_path / "old", "old")
    replace_atomically(new, old)

    assert (old / "file").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} - {"new"} == {"old"}
    assert not new.exists() or (new / "file").read_text() == "old"


@pytest.mark.usefixtures("way")
def test_a_file_replaces_a_file_and_a_first_folder_needs_no_old_one(tmp_path: Path) -> None:
    """Both are plain moves."""
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    replace_atomically(tmp_path / "a", tmp_path / "b")
    replace_atomically(folder(tmp_path / "c", "first"), tmp_path / "d")

    assert (tmp_path / "b").read_text() == "new"
    assert (tmp_path / "d" / "file").read_text() == "first"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("move", [1, 2])
def test_an_old_folder_is_put_back_if_the_new_one_cannot_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: int
) -> None:
    """Either move may fail."""
    new, old = folder(tmp_path / "new", "new"), folder(tmp_path / "old", "old")
    failing(monkeypatch, move)
    with pytest.raises(OSError, match="Read-only"):
        replace_atomically(new, old)

    assert [(tmp_path / name / "file").read_text() for name in ("old", "new")] == ["old", "new"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("move", [1, 2])
def test_an_old_folder_is_put_back_if_a_signal_ends_the_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: int
) -> None:
    """A signal is raised as an error, and may come at either move."""
    new, old = folder(tmp_path / "new", "new"), folder(tmp_path / "old", "old")
    failing(monkeypatch, move, error=Terminated(signal.SIGTERM))
    with pytest.raises(Terminated):
        replace_atomically(new, old)

    assert [(tmp_path / name / "file").read_text() for name in ("old", "new")] == ["old", "new"]
    assert len(list(tmp_path.iterdir())) == 2


def test_an_old_folder_that_cannot_be_put_back_is_kept_and_its_path_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk became read-only between two moves."""
    new, old = folder(tmp_path / "new", "new"), folder(tmp_path / "old", "old")
    failing(monkeypatch, 2, 3)
    with pytest.raises(PackagingError, match="move it back yourself") as failed:
        replace_atomically(new, old)

    kept = next(tmp_path.glob(".neuron-lstm-*")) / "previous"
    assert (kept / "file").read_text() == "old"
    assert str(kept) in str(failed.value)


def test_two_paths_are_exchanged_in_one_step_or_stay(tmp_path: Path) -> None:
    """This system can."""
    one, other = folder(tmp_path / "one", "1"), folder(tmp_path / "other", "2")

    assert exchange(one, other)
    assert (one / "file").read_text() == "2"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        exchange(one, tmp_path / "nowhere")
    assert (one / "file").read_text() == "2"
