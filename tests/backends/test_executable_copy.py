"""Compiled code on a file system mounted noexec is copied to a place where it may be mapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from torchserve_neuron_lstm.backends import executable_copy
from torchserve_neuron_lstm.backends.interface import LoadError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A folder of two files of code and a file that is not code."""
    folder = tmp_path / "program"
    folder.mkdir()
    for name in ("a.so", "b.so", "program.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def noexec(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the named folders be on a file system mounted noexec, and no other one."""

    def mount(*folders: Path) -> None:
        monkeypatch.setattr(executable_copy, "_is_noexec", lambda place: place in folders)

    return mount


def test_code_that_may_be_mapped_where_it_is_is_not_copied(directory: Path, noexec: Callable[..., None]) -> None:
    """The folder itself is given."""
    noexec()
    with executable_copy.executable_copy(directory, ["a.so", "b.so"]) as mapped:
        assert mapped == directory


def test_a_copy_has_the_named_files_and_is_removed(
    directory: Path, tmp_path: Path, noexec: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is below TMPDIR."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    noexec(directory)
    with executable_copy.executable_copy(directory, ["a.so", "b.so"]) as mapped:
        assert mapped.parent == place
        assert {file.name: file.read_text() for file in mapped.iterdir()} == {"a.so": "a.so", "b.so": "b.so"}

    assert list(place.iterdir()) == []
    assert len(list(directory.iterdir())) == 3


def test_a_place_that_is_missing_or_noexec_too_is_passed_over(
    directory: Path, tmp_path: Path, noexec: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is taken: the directory of the user's session, or the home directory."""
    home = tmp_path / "home"
    run = tmp_path / "run"
    for folder in (home, run):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    monkeypatch.setenv("HOME", str(home))
    noexec(directory, run)
    with executable_copy.executable_copy(directory, ["a.so"]) as mapped:
        assert mapped.parent == home


def test_noexec_everywhere_is_refused_with_the_way_out(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the tried places and TMPDIR."""
    monkeypatch.setenv("TMPDIR", str(directory.parent))
    monkeypatch.setattr(executable_copy, "_is_noexec", lambda place: True)
    message = rf"{directory} is on .* mounted noexec.*none of {directory.parent}, .*set TMPDIR to a directory"

    with (
        pytest.raises(LoadError, match=message),
        executable_copy.executable_copy(directory, ["a.so"]),
    ):
        pass
