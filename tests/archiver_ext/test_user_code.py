"""The user's codec, checked while packaging."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext import archive_command, model_archiver
from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_class import importable
from torchserve_neuron_lstm.archiver_ext.user_code import check_codec
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from .conftest import Project


def test_a_codec_must_be_a_class_in_the_archive(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("class Text:\n    pass\n")
    (tmp_path / "broken.py").write_text("import not_there_at_all\n")
    with importable(tmp_path):
        check_codec("words:Text", tmp_path)
        check_codec(None, tmp_path)
        for codec, complaint in [
            ("missing:Text", "no missing.py in the archive; give it with --extra-files"),
            ("words:Absent", "words.py defines no class Absent"),
            ("broken:Text", "broken.py cannot be imported: ModuleNotFoundError"),
        ]:
            with pytest.raises(PackagingError, match=complaint):
                check_codec(codec, tmp_path)


KERNEL = """
def choose(length, lengths):
    return len(lengths) - 1


def too_short(length, lengths):
    return 0
"""
Said = tuple[int, str, str]
Package = Callable[..., Said]


@pytest.fixture
def package(project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Package:
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("TMPDIR", str(project.temporary))
    monkeypatch.setattr("tempfile.tempdir", str(project.temporary))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (project.folder / "my_kernel.py").write_text(KERNEL)

    def run(kernel: str, *more: str, block: str = "") -> Said:
        config = Path("model-config.yaml")
        text = config.read_text().replace(", longest: 4}", f", kernel: '{kernel}'}}")
        config.write_text(text + block)
        given = [*project.flags(), "--handler", "neuron_lstm", "--export-path", str(project.folder), *more]
        flags = model_archiver.parse(given)
        return archive_command.archive(flags, model_archiver.manifest_json(flags)), *capfd.readouterr()

    return run


def test_the_model_is_served_over_whole_sequences_in_the_lengths_chosen(project: Project, package: Package) -> None:
    code, output, error = package("my_kernel:choose", "--extra-files", "my_kernel.py")

    assert code == 0, error
    assert "runs as sequence: my_kernel:choose selects a bucket for each whole sequence" in output
    with ArchiveReader(project.folder / "tiny.mar").unpacked() as folder:
        manifest = read_manifest(folder)
        assert (manifest.kernel, manifest.kind, manifest.shapes) == ("my_kernel:choose", "sequence", "grid")
        assert "my_kernel.py" in manifest.files
        variants = load_archive(folder, threads=1)
        assert {run.bucket.length for run in variants.plan([1, 2, 3]).calls} == {4}
    sys.modules.pop("my_kernel", None)


@pytest.mark.parametrize(
    ("kernel", "more", "block", "complaint"),
    [
        ("my_kernel:choose", [], "", "there is no my_kernel.py in the archive; give it with --extra-files"),
        ("my_kernel:other", ["--extra-files", "my_kernel.py"], "", "has no attribute 'other'"),
        ("my_kernel:too_short", ["--extra-files", "my_kernel.py"], "", "3 timesteps: 0, which is the length 2"),
        ("my_kernel", [], "", "buckets.kernel: expected module:function"),
        ("my_kernel:choose", [], "  streaming: {}\n", "buckets.kernel: expected none"),
    ],
)
def test_a_choice_that_cannot_be_served_by_is_refused(
    project: Project, package: Package, kernel: str, more: list[str], block: str, complaint: str
) -> None:
    before = project.listing()

    code, output, error = package(kernel, *more, block=block)

    assert (code, output) == (1, "")
    assert complaint in error
    assert "Traceback" not in error
    assert project.listing() == before
