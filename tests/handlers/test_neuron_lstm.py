"""The entry file of an archive: nothing of a changed folder runs, and the message names the file."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchserve_neuron_lstm.handlers.neuron_lstm import check_folder, parse_list

from .small_archive import ENTRY_FILE, PACKAGE, START, Started, files_of


def test_an_untouched_archive_is_ready(small_archive: Path) -> None:
    """The marker shows that the entry point ran."""
    started = Started(small_archive)

    assert started.ready, started.told
    assert started.ran == f"{PACKAGE}.handlers.torchserve"


def test_every_file_changed_by_one_byte_is_named(archive: Path) -> None:
    """Every file of a real archive, the manifests, the list and the entry file among them, anywhere in it."""
    names = files_of(archive)
    assert {"SHA256SUMS", ENTRY_FILE, "variants.json", "MAR-INF/MANIFEST.json", "weights.pt"} <= set(names)
    drawn = random.Random(0)
    for name in names:
        content = (archive / name).read_bytes()
        changed = bytearray(content or b"x")
        changed[drawn.randrange(len(changed))] ^= 1
        (archive / name).write_bytes(changed)
        with pytest.raises(RuntimeError, match=re.escape(name)):
            check_folder(str(archive), None)
        (archive / name).write_bytes(content)
    check_folder(str(archive), None)


@pytest.mark.parametrize(
    "name",
    [
        "SHA256SUMS",
        "variants.json",
        "MAR-INF/MANIFEST.json",
        "weights.pt",
        "helper.py",
        f"{PACKAGE}/__init__.py",
        f"{PACKAGE}/handlers/torchserve.py",
        f"{PACKAGE}/handlers/runtime/checked_modules.py",
    ],
)
def test_nothing_runs_after_a_change_of_one_byte(small_archive: Path, name: str) -> None:
    """A space at the end of a file is enough."""
    with (small_archive / name).open("a") as file:
        file.write(" ")
    started = Started(small_archive)

    assert not started.ready
    assert name in started.refusal
    assert not started.ran


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_list_holds_in_every_byte(pristine_small: Path, data: st.DataObject) -> None:
    """No byte of it can be changed, removed or added without a refusal that names the list."""
    content = (pristine_small / "SHA256SUMS").read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.binary(min_size=0, max_size=2))
    changed = content[:position] + byte + content[position + 1 :]
    if changed != content:
        with pytest.raises(RuntimeError, match="SHA256SUMS"):
            parse_list(changed)


def test_a_handler_of_another_folder_is_refused(small_archive: Path, tmp_path: Path) -> None:
    """Its check would be of its own folder."""
    other = Path(shutil.copytree(small_archive, tmp_path / "other"))
    program = START.replace('{"model_dir": folder}', f'{{"model_dir": {str(other)!r}}}')
    done = subprocess.run(
        [sys.executable, "-c", program, str(small_archive)],
        cwd=small_archive,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert f"the archive is in {other}" in done.stderr


def test_many_files_are_one_short_line(small_archive: Path) -> None:
    """Names that could break the line of a log are escaped."""
    for index in range(9):
        (small_archive / f"file{index}\n").write_text("")
    with pytest.raises(RuntimeError, match=r"file0\\n.* and 4 more") as refused:
        check_folder(str(small_archive), None)
    assert "\n" not in str(refused.value)


def test_sha256sum_reads_the_list(pristine: Path) -> None:
    """Everybody can compare an unpacked archive with its list."""
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(command, cwd=pristine, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_a_shim_with_another_byte_is_never_ready(small_archive: Path, seed: int) -> None:
    """It runs and refuses itself, or does not run at all."""
    content = bytearray((small_archive / ENTRY_FILE).read_bytes())
    drawn = random.Random(seed)
    content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(7)
    (small_archive / ENTRY_FILE).write_bytes(content)
    started = Started(small_archive)

    assert not started.ready
    assert ENTRY_FILE in started.told
    assert not started.ran
