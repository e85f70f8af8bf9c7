import errno
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from printed import Capture, printed, refusal

from torchserve_neuron_lstm.archiver_ext.commands.tuning.picture import bars, draw
from torchserve_neuron_lstm.archiver_ext.commands.tuning.proposal import propose
from torchserve_neuron_lstm.archiver_ext.commands.tuning.target import EnginePadding, Target
from torchserve_neuron_lstm.bucketing.bucket_lengths import clip_histogram

AWKWARD: tuple[dict[int, int], ...] = (
    {1: 1},
    {7: 10**12},
    {1: 1, 999_999_999: 1},
    {1000: 1, 1001: 5, 1003: 1},
    dict.fromkeys(range(1, 400), 1),
)
histograms = st.sampled_from(AWKWARD) | st.dictionaries(
    st.integers(1, 300) | st.integers(1, 10**6), st.integers(1, 1000), min_size=1, max_size=30
)
grids = st.sets(st.integers(1, 400), min_size=1, max_size=20).map(lambda sizes: tuple(sorted(sizes)))


@given(histograms, grids, st.booleans())
@example({9: 1}, (4,), False)  # the current lengths fit no sequence
def test_areas_are_the_timesteps_of_each_grid(histogram: dict[int, int], current: tuple[int, ...], cut: bool) -> None:
    for grid in propose(histogram, Target(lengths=current, truncate=cut)).grids:
        edges, real, padding = bars(clip_histogram(histogram, grid.longest, truncate=cut), grid.lengths)

        assert grid.computed is not None
        assert (real * np.diff(np.log(edges))).sum() == pytest.approx(grid.useful)
        assert ((real + padding) * np.diff(np.log(edges))).sum() == pytest.approx(grid.computed)
        assert min(*real, *padding) >= 0
        assert {length + 0.5 for length in grid.lengths} <= {*edges}, "a bar spans a step"
        assert len(real) <= 61 + len(grid.lengths)


@pytest.mark.parametrize("histogram", AWKWARD)
def test_awkward_histograms_are_drawn_all_the_same(histogram: dict[int, int]) -> None:
    target = Target(lengths=(16, 32))
    assert b"</svg>" in draw(propose(histogram, target), target, ".svg")


@pytest.mark.parametrize(
    ("padding", "count", "shown"),
    [
        ("bucket", None, {"Current: 2 lengths, padding 75.0 %", "Proposed: 2 lengths, padding 0.0 %", "padding"}),
        ("none", None, {"Current: 2 lengths, padding 0.0 %"}),
        ("call", 1, {"Current: 2 lengths, padding by batch", "Proposed: 1 length, padding by batch"}),
    ],
)
def test_a_panel_says_what_its_grid_pads(padding: str, count: int | None, shown: set[str]) -> None:
    """The picture has each text as a comment, too. Padding is drawn only where lengths change it."""
    target = Target(EnginePadding("some", padding), (16, 32))  # type: ignore[arg-type]
    drawn = draw(propose({4: 2}, target, count=count), target, ".svg").decode()
    told = {line.strip("<!-> ") for line in drawn.splitlines() if line.strip().startswith("<!-- ")}

    assert {text for text in told if "padding" in text} == shown
    assert "2 sequences of 4 to 4 timesteps, 4.0 on average" in told


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lengths.txt").write_text("3:50 9:10\n")
    return tmp_path


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_the_suffix_chooses_the_kind_of_file(name: str, begins: bytes, capsys: Capture, folder: Path) -> None:
    printed(capsys, "tune", "lengths.txt", "--picture", name)
    assert (folder / name).read_bytes().startswith(begins)


def test_a_picture_that_cannot_be_written_leaves_the_file_as_it_was(
    capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.svg").write_text("before")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", full)
        assert "no space left on device" in refusal(capsys, "tune", "lengths.txt", "--picture", "a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    told = refusal(capsys, "tune", "lengths.txt", "--picture", "a.svg")

    assert "a picture needs the package matplotlib: pip install 'torchserve-neuron-lstm[picture]'" in told
    assert {path.name for path in folder.iterdir()} == {"lengths.txt", "a.svg"}
    assert (folder / "a.svg").read_text() == "before"
