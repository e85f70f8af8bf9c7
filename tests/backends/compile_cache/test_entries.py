"""Entries of the cache of compiled programs: whole or not there, checked at each use, bounded in size."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchserve_neuron_lstm.backends.compile_cache import entries

KEY = "0" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty cache."""
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path / "cache"


def program(directory: Path, content: bytes = b"code") -> Path:
    """A compiled program of two files."""
    (directory / "inner").mkdir(parents=True)
    (directory / "program.so").write_bytes(content)
    (directory / "inner" / "signature.json").write_bytes(b"{}")
    return directory


def files(directory: Path) -> dict[str, bytes]:
    """The files below a directory."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def test_what_is_kept_is_fetched(folder: Path, tmp_path: Path) -> None:
    """The copy has the same files, and the cache holds nothing but the entry."""
    source = program(tmp_path / "source")
    entries.keep(folder, KEY, source)

    assert entries.fetch(folder, KEY, tmp_path / "target")
    assert files(tmp_path / "target") == files(source)
    assert [entry.name for entry in folder.iterdir()] == [KEY]


def test_an_unknown_key_is_not_fetched(folder: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    assert not entries.fetch(folder, KEY, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def _changed(entry: Path) -> None:
    (entry / "files" / "program.so").write_bytes(b"evil")


def _cut(entry: Path) -> None:
    (entry / "files" / "program.so").write_bytes(b"")


def _without_a_file(entry: Path) -> None:
    (entry / "files" / "program.so").unlink()


def _with_another_file(entry: Path) -> None:
    (entry / "files" / "more.so").write_bytes(b"evil")


def _linked_file(entry: Path) -> None:
    file = entry / "files" / "program.so"
    file.rename(entry.parent / "elsewhere.so")
    file.symlink_to(entry.parent / "elsewhere.so")


def _linked_entry(entry: Path) -> None:
    entry.rename(entry.parent.parent / "elsewhere")
    entry.symlink_to(entry.parent.parent / "elsewhere")


def _without_digests(entry: Path) -> None:
    (entry / "digests.json").unlink()


def _with_broken_digests(entry: Path) -> None:
    (entry / "digests.json").write_text("[")


def _with_a_name_outside(entry: Path) -> None:
    (entry / "digests.json").write_text(json.dumps({"../../escaped": "0" * 64}))


def _a_file_in_its_place(entry: Path) -> None:
    entry.rename(entry.parent.parent / "elsewhere")
    entry.write_text("no folder")


@pytest.mark.parametrize(
    "damage",
    [
        *(_changed, _cut, _without_a_file, _with_another_file, _linked_file, _linked_entry),
        *(_without_digests, _with_broken_digests, _with_a_name_outside, _a_file_in_its_place),
    ],
)
def test_a_damaged_entry_is_dropped(folder: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """It is not used, and the program that is compiled again takes its place."""
    source = program(tmp_path / "source")
    entries.keep(folder, KEY, source)
    damage(folder / KEY)

    assert not entries.fetch(folder, KEY, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    entries.keep(folder, KEY, source)
    assert entries.fetch(folder, KEY, tmp_path / "target")
    assert files(tmp_path / "target") == files(source)


def test_two_processes_keep_one_program_at_once(folder: Path, tmp_path: Path) -> None:
    """One entry is there, whole, and no unfinished one."""
    sources = [program(tmp_path / str(index)) for index in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda source: entries.keep(folder, KEY, source), sources))

    assert [entry.name for entry in folder.iterdir()] == [KEY]
    assert entries.fetch(folder, KEY, tmp_path / "target")


def test_what_was_not_used_for_longest_is_deleted_first(folder: Path, tmp_path: Path) -> None:
    """A fetch counts as a use."""
    for index in range(3):
        source = program(tmp_path / f"source{index}", bytes(100_000))
        entries.keep(folder, str(index), source)
        os.utime(folder / str(index), (index, index))
    assert entries.fetch(folder, "0", tmp_path / "target")

    entries.keep(folder, "3", program(tmp_path / "source3", bytes(100_000)), limit=330_000)

    assert {entry.name for entry in folder.iterdir()} == {"0", "2", "3"}


def test_what_a_killed_process_left_is_deleted_after_an_hour(folder: Path, tmp_path: Path) -> None:
    """The unfinished entry of a living process stays."""
    for name, age in ((".new-old", 7200.0), (".new-young", 10.0)):
        (folder / name).mkdir()
        os.utime(folder / name, (time.time() - age,) * 2)

    entries.keep(folder, KEY, program(tmp_path / "source"))

    assert {entry.name for entry in folder.iterdir()} == {".new-young", KEY}


def test_a_cache_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    """Nothing is kept and nothing fetched."""
    entries.keep(tmp_path / "gone", KEY, program(tmp_path / "source"))

    assert not entries.fetch(tmp_path / "gone", KEY, tmp_path / "target")
    assert not (tmp_path / "gone").exists()
