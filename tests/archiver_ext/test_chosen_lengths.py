import pytest

from torchserve_neuron_lstm.config.manifest import read_manifest

from .conftest import Project


@pytest.mark.ci
def test_an_archive_is_packaged_with_lengths_chosen_for_its_traffic(project: Project) -> None:
    file = project.folder / "model-config.yaml"
    file.write_text(file.read_text().replace("[2, 4]", "{auto: 2, histogram: lengths.txt}"))
    (project.folder / "lengths.txt").write_text("2:9 3:5 6:1")

    done = project.archive("--archive-format", "no-archive", "--export-path", ".")

    assert done.returncode == 0, done.stderr
    grid = read_manifest(project.folder / "tiny").grid
    assert grid.batches == (1, 2)
    assert grid.lengths == (3, 6)


def test_a_histogram_that_cannot_be_read_leaves_no_archive(project: Project) -> None:
    file = project.folder / "model-config.yaml"
    file.write_text(file.read_text().replace("[2, 4]", "{auto: 2, histogram: lengths.txt}"))
    before = project.listing()

    done = project.archive()

    assert done.returncode == 1
    assert "neuron_lstm.buckets.length.histogram: lengths.txt: cannot be read: No such file or directory" in done.stderr
    assert project.listing() == before
