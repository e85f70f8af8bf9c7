"""Files of an archive that are replaced by a link, a pipe or a folder, or removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder

from .small_archive import ENTRY_FILE, PACKAGE, Started


def _link(path: Path) -> None:
    outside = Path(os.environ["OUTSIDE"]) / "moved"
    path.rename(outside)
    path.symlink_to(outside)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _remove(path: Path) -> None:
    path.unlink()


@pytest.mark.few(14)
@pytest.mark.parametrize("replace", [_link, _pipe, _folder, _remove])
@pytest.mark.parametrize("name", ["SHA256SUMS", "weights.pt", "helper.py", ENTRY_FILE, f"{PACKAGE}/__init__.py"])
def test_a_file_replaced_by_something_else_is_named(
    small_archive: Path, name: str, replace: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to the very same content counts as a change, because its target may change later."""
    monkeypatch.setenv("OUTSIDE", str(small_archive.parent))
    replace(small_archive / name)
    if name == ENTRY_FILE and replace is not _link:  # there is nothing left to run
        with pytest.raises(RuntimeError, match="neuron_lstm"):
            check_folder(str(small_archive), None)
        return
    started = Started(small_archive)

    assert not started.ready
    assert name in started.refusal
    assert not started.ran


@pytest.mark.parametrize("name", ["programs", "package", "__pycache__"])
def test_a_linked_folder_is_named(small_archive: Path, name: str) -> None:
    """The files in it are outside the archive."""
    outside = small_archive.parent / "outside"
    if (small_archive / name).exists():
        (small_archive / name).rename(outside)
    else:
        outside.mkdir()
    (small_archive / name).symlink_to(outside)
    started = Started(small_archive)

    assert not started.ready
    assert f"{name} is not in SHA256SUMS" in started.refusal
    assert not started.ran
