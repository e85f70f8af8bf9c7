import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchserve_neuron_lstm.archiver_ext.errors import PackagingError
from torchserve_neuron_lstm.archiver_ext.model_class import importable
from torchserve_neuron_lstm.archiver_ext.package import check_codec
from torchserve_neuron_lstm.config.manifest import read_manifest
from torchserve_neuron_lstm.handlers.runtime.loader import load_archive
from torchserve_neuron_lstm.inference.reader import ArchiveReader

from .conftest import Package, Packaged, Project


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


@pytest.fixture
def choose(project: Project, package: Package, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Packaged]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (project.folder / "my_kernel.py").write_text(KERNEL)

    def run(kernel: str, *more: str, block: str = "") -> Packaged:
        config = project.folder / "model-config.yaml"
        config.write_text(config.read_text().replace(", longest: 4}", f", kernel: '{kernel}'}}") + block)
        return package(*more)

    return run


def test_the_model_is_served_over_whole_sequences_in_the_lengths_chosen(
    project: Project, choose: Callable[..., Packaged]
) -> None:
    code, output, error = choose("my_kernel:choose", "--extra-files", "my_kernel.py")

    assert code == 0, error
    assert "without sessions: my_kernel:choose selects a bucket for each whole sequence" in output
    with ArchiveReader(project.folder / "tiny.mar").unpacked() as folder:
        manifest = read_manifest(folder)
        assert (manifest.kernel, manifest.kind, manifest.shapes) == ("my_kernel:choose", "sequence", "grid")
        assert (folder / "my_kernel.py").is_file()
        assert {run.bucket.length for run in load_archive(folder, threads=1).plan([1, 2, 3]).calls} == {4}
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
    project: Project, choose: Callable[..., Packaged], kernel: str, more: list[str], block: str, complaint: str
) -> None:
    before = project.listing()

    code, output, error = choose(kernel, *more, block=block)

    assert (code, output) == (1, "")
    assert complaint in error
    assert "Traceback" not in error
    assert project.listing() == before
