import json
import os
from pathlib import Path

import pytest
import warm_archiver
from hypothesis import given
from hypothesis import strategies as st
from printed import Capture, misuse, printed, refusal
from tiny_archive import make_archive

from torchserve_neuron_lstm.archiver_ext import cli
from torchserve_neuron_lstm.archiver_ext.commands import bench_archive
from torchserve_neuron_lstm.archiver_ext.commands.bench_archive import sample_batches
from torchserve_neuron_lstm.config.manifest import CostMeasurement


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A small archive for lengths up to 8, as a folder, with a list of lengths beside it."""
    (tmp_path / "lengths.txt").write_text("1 3 8:2 5 2\n")
    (tmp_path / "sums").mkdir()
    return make_archive(tmp_path / "sums")


def flags(archive: Path, *more: str) -> list[str]:
    return ["bench", str(archive), "--lengths", str(archive.with_name("lengths.txt")), "--batch", "3", *more]


@pytest.mark.ci
def test_the_command_tells_what_an_archive_does_here(archive: Path) -> None:
    done = warm_archiver.run(["neuron-lstm", *flags(archive, "--json", "--threads", "1")], archive, os.environ)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    assert sorted(length for batch in told["batches"] for length in batch) == [1, 2, 3, 5, 8, 8]
    assert (told["requests"], told["timesteps"], told["threads"]) == (6, 27, 1)
    assert set(told["ways"]) == {"as served", "one at a time"}
    assert all(way["requests_per_s"] > 0 and 0 <= way["waste"] < 1 for way in told["ways"].values())
    assert told["plan_us"] > 0


def test_people_get_a_table(archive: Path, capsys: Capture) -> None:
    told = printed(capsys, *flags(archive))
    assert "as served" in told
    assert "2 batches of 3 requests, 4.5 timesteps on average, 8 at most" in told
    ways = json.loads(printed(capsys, *flags(archive, "--json")))["ways"]
    assert ways["one at a time"]["waste"] == 1 - 27 / (3 * 4 + 3 * 8)


def test_lengths_that_are_not_served_are_named(archive: Path, capsys: Capture) -> None:
    (archive.with_name("lengths.txt")).write_text("9")
    assert "does not serve all of these lengths: a sequence of 9 timesteps" in refusal(capsys, *flags(archive))
    (archive.with_name("lengths.txt")).write_text("long, short")
    assert "lengths.txt: expected whole numbers" in refusal(capsys, *flags(archive))
    (archive.with_name("lengths.txt")).write_text("3")
    (archive / "weights.pt").write_text("others")
    assert "weights.pt was changed" in refusal(capsys, *flags(archive))


@pytest.mark.ci
def test_an_archive_that_cuts_is_measured_with_what_it_cuts_to(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "lengths.txt").write_text("100")
    archive = make_archive(tmp_path / "sums", overflow="truncate")
    assert json.loads(printed(capsys, *flags(archive, "--json")))["batches"] == [[8, 8, 8]]


@pytest.mark.few(3)
@pytest.mark.parametrize("wrong", [["--batch", "0"], ["--batch", "x"], ["--threads", "1.5"]])
def test_a_number_must_be_one(archive: Path, capsys: Capture, wrong: list[str]) -> None:
    assert "expected a whole number from 1 on" in misuse(capsys, *flags(archive, *wrong))


@pytest.mark.ci
def test_an_engine_that_stops_rows_computes_no_padding_in_recurrent_layers(
    native_archive: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "lengths.txt").write_text("1 4")
    arguments = ["bench", native_archive, "--lengths", tmp_path / "lengths.txt", "--batch", "2", "--threads", "1"]

    served = json.loads(printed(capsys, *arguments, "--json"))["ways"]["as served"]
    assert served["waste"] == 0.0
    assert "native stops each row at its own end: recurrent layers compute no padding" in printed(capsys, *arguments)


def test_figures_that_vary_are_doubtful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "sums").mkdir()
    (tmp_path / "lengths.txt").write_text("3")
    archive = make_archive(tmp_path / "sums", measurement=CostMeasurement(1, 1.5))
    measured = {"planning": (1.0, 3.0)}
    monkeypatch.setattr(bench_archive, "measure", lambda calls, _: dict.fromkeys(calls, (1.0, 1.0)) | measured)

    assert cli.main(flags(archive, "--json")) == 0

    shown = capsys.readouterr()
    lines = [
        "the turns of planning vary: run it again while nothing else runs here",
        "costs were measured on a busy machine: run neuron-lstm calibrate",
    ]
    assert json.loads(shown.out)["doubts"] == lines
    assert shown.err.splitlines() == [f"these figures are doubtful: {line}" for line in lines]


HISTOGRAMS = st.dictionaries(st.integers(1, 400), st.integers(1, 20), min_size=1, max_size=12)


@given(HISTOGRAMS, st.integers(1, 40), st.integers(1, 5))
def test_lengths_are_dealt_as_often_as_they_were_seen(histogram: dict[int, int], size: int, most: int) -> None:
    batches = sample_batches(histogram, size, most)
    dealt = [length for batch in batches for length in batch]

    assert 1 <= len(batches) <= most
    assert all(len(batch) == size for batch in batches)
    first = dealt[: sum(histogram.values())]
    assert all(first.count(length) <= histogram[length] for length in first)
    if len(dealt) >= sum(histogram.values()):
        assert set(dealt) == set(histogram)


def test_a_histogram_of_a_whole_year_is_dealt_from_at_once() -> None:
    assert sample_batches({7: 10**14}, size=2, most=1) == ((7, 7),)
