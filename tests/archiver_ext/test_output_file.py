"""Files that a command writes for its user."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from torchserve_neuron_lstm.archiver_ext.output_file import open_output, write_output
from torchserve_neuron_lstm.inference.errors import ArchiveError


def test_a_file_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path) -> None:
    """The disk may be full after the first bytes; nothing else is left in the folder."""
    file = tmp_path / "model-config.yaml"
    file.write_text("before")

    def fail(written: BinaryIO) -> None:
        written.write(b"half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"), open_output(file) as written:
        fail(written)

    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("model-config.yaml", "before")]


def test_a_replaced_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    """The content is new, at the place to which the link leads."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    write_output(link, b"after")

    assert link.is_symlink()
    assert target.read_text() == "after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_device_is_written_to_directly() -> None:
    """It cannot be replaced."""
    write_output(Path("/dev/null"), b"nothing")

    assert Path("/dev/null").is_char_device()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The message has no name of a temporary file."""
    with pytest.raises(ArchiveError) as refused:
        write_output(tmp_path / "none" / "file", b"")

    assert str(refused.value) == f"there is no folder {tmp_path / 'none'}"
