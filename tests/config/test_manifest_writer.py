"""Digests of an archive's files, and refusals of an archive that was changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torchserve_neuron_lstm.config.manifest import ManifestError, read_manifest, verify_files
from torchserve_neuron_lstm.config.manifest_writer import digest_files, write_manifest

from .example_manifest import EXAMPLE


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    files = {
        "weights.pt": "w",
        "programs/inductor/b1_t16/model.so": "so",
        "MAR-INF/MANIFEST.json": "{}",
        "__pycache__/model.pyc": "x",
        "programs/.hidden/file": "x",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    write_manifest(replace(EXAMPLE, files=digest_files(tmp_path)), tmp_path)
    return tmp_path


def test_digests_are_those_of_the_files_that_are_archived(archive: Path) -> None:
    assert digest_files(archive) == {
        "programs/inductor/b1_t16/model.so": "a1d9890884c1b4b960c279cfe7554a900d169422d6cec980beef67761487d3b9",
        "weights.pt": "50e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc326",
    }


def test_an_untouched_archive_is_accepted_with_files_besides(archive: Path) -> None:
    """TorchServe itself puts files into an unpacked archive."""
    (archive / "venv").mkdir()
    (archive / "venv" / "pyvenv.cfg").write_text("home = /usr")

    verify_files(archive, read_manifest(archive))


def remove(path: Path) -> None:
    path.unlink()


def append(path: Path) -> None:
    path.write_text(path.read_text() + "!")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"), [(remove, "is missing"), (append, "was changed"), (replace_by_folder, "is missing")]
)
def test_every_damaged_file_is_named(archive: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(archive / "weights.pt")
    damage(archive / "programs/inductor/b1_t16/model.so")

    with pytest.raises(RuntimeError) as refused:
        verify_files(archive, read_manifest(archive))
    assert str(refused.value) == (
        f"the archive is not as it was packaged: programs/inductor/b1_t16/model.so {said}, weights.pt {said}; "
        "package the model again"
    )


def test_weights_without_a_digest_are_refused(archive: Path) -> None:
    with pytest.raises(ManifestError, match=r"weights\.pt has no digest"):
        verify_files(archive, replace(EXAMPLE, files={}))
