"""Folder of the cache: named by the environment, of this user alone, and never a reason to fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchserve_neuron_lstm.backends.compile_cache.folder import VARIABLE, cache_folder


def test_the_folder_is_below_that_for_caches(tmp_path: Path) -> None:
    """It is made for this user alone; without XDG_CACHE_HOME it is below the home directory."""
    found = cache_folder({"XDG_CACHE_HOME": str(tmp_path)})

    assert found.path == tmp_path / "torchserve-neuron-lstm"
    assert found.path.stat().st_mode & 0o777 == 0o700
    assert found.note is None


def test_the_folder_is_below_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG_CACHE_HOME is ignored, as its specification says."""
    monkeypatch.setenv("HOME", str(tmp_path))

    for environment in ({}, {"XDG_CACHE_HOME": "relative"}, {"XDG_CACHE_HOME": ""}):
        assert cache_folder(environment).path == tmp_path / ".cache" / "torchserve-neuron-lstm"


def test_the_variable_names_another_folder_or_none(tmp_path: Path) -> None:
    """`off` is no problem and has no note."""
    assert cache_folder({VARIABLE: str(tmp_path / "mine")}).path == tmp_path / "mine"

    off = cache_folder({VARIABLE: "off", "XDG_CACHE_HOME": str(tmp_path)})
    assert (off.path, off.note) == (None, None)
    assert not (tmp_path / "torchserve-neuron-lstm").exists()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path, mode: int) -> None:
    """The note says what to do."""
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(mode)

    found = cache_folder({VARIABLE: str(folder)})

    assert found.path is None
    assert found.note is not None
    assert f"{folder}: other users may enter it" in found.note
    assert "chmod 700" in found.note


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could replace the code in it."""
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)

    found = cache_folder({VARIABLE: str(folder)})

    assert found.path is None
    assert "another user owns it" in str(found.note)


def test_a_link_or_a_file_is_not_used(tmp_path: Path) -> None:
    """Neither is followed nor replaced."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("mine")

    for name in ("link", "file"):
        found = cache_folder({VARIABLE: str(tmp_path / name)})
        assert found.path is None
        assert found.note is not None
    assert (tmp_path / "file").read_text() == "mine"


def test_a_place_that_cannot_be_made_is_a_note(tmp_path: Path) -> None:
    """A file in the way, as on a read-only home directory, does not end packaging."""
    (tmp_path / "file").write_text("")

    found = cache_folder({VARIABLE: str(tmp_path / "file" / "cache")})

    assert found.path is None
    assert "compiled programs are not cached" in str(found.note)


def test_no_home_directory_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have a user without one."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)

    found = cache_folder({})
    assert found.path is None
    assert "home directory" in str(found.note)
