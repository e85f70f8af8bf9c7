import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from printed import Capture, misuse, printed
from tiny_archive import make_archive

from torchserve_neuron_lstm.archiver_ext import cli
from torchserve_neuron_lstm.bucketing.shapes import Bucket, TensorSpec
from torchserve_neuron_lstm.config.load import load_config
from torchserve_neuron_lstm.config.manifest import MeasuredCost, Variant

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "examples" / "lengths" / "lognormal.txt"
CONFIG = """\
batchSize: 8  # at once
neuron_lstm:
  inputs: {ids: {dtype: int64, shape: [batch, time]}}
  buckets:
    batch: [1, 8]
    length: [16, 32, 64, 128, 256, 330]  # powers of two
"""
LOG = """\
2026-03-04T05:06:08,008 [INFO ] W-9000-tagger_1.0-stdout MODEL_LOG - neuron_lstm lengths 3:20 12:1
2026-03-04T05:06:09,008 [INFO ] W-9001-scorer_2.1-stdout MODEL_LOG - neuron_lstm lengths 7:4
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model-config.yaml").write_text(CONFIG)
    (tmp_path / "lengths.txt").write_text("3:50 5:20 9:10 30:2 31:1\n")
    return tmp_path


def figures(capsys: Capture, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(capsys, "tune", *arguments, "--json"))
    return found


def failure(capsys: Capture, *arguments: str) -> str:
    assert cli.main(["tune", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    return captured.err


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("neuron-lstm")), "tune", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.ci
def test_lengths_are_proposed_with_their_savings_and_a_picture(folder: Path) -> None:
    done = run(str(SAMPLE), "--config", "model-config.yaml", "--count", "8", "--picture", "a.svg")

    assert done.returncode == 0
    note, *written = done.stderr.splitlines()
    assert written == ["wrote a.svg"]
    assert note.startswith("note: the figures are those of an engine with a program for each bucket; one with ")
    assert "10,000 sequences of 1 to 324 timesteps, 25.3 on average" in done.stdout
    assert "31.2 %" in done.stdout
    assert "19.1 %" in done.stdout
    assert done.stdout.endswith("    length: [12, 19, 27, 38, 53, 76, 126, 330]\n")
    assert (folder / "model-config.yaml").read_text() == CONFIG
    assert "<svg" in (folder / "a.svg").read_text()


@pytest.mark.ci
def test_without_a_configuration_the_lines_to_copy_are_printed() -> None:
    done = run("-", "--count", "2", given="3 3 3 9\n")

    assert done.returncode == 0
    assert done.stderr.startswith("note: the figures are those of an engine with a program for each bucket; ")
    assert done.stdout.endswith("neuron_lstm:\n  buckets:\n    length: [3, 9]\n")
    assert "today" not in done.stdout


def test_the_log_of_one_model_is_read(capsys: Capture, folder: Path) -> None:
    (folder / "model_log.log").write_text(LOG)

    assert failure(capsys, "model_log.log").endswith(
        "the log has lengths of 2 models: scorer, tagger: name one with --model\n"
    )
    assert "no lengths of the model x" in failure(capsys, "model_log.log", "--model", "x")
    found = figures(capsys, "model_log.log", "--model", "tagger")
    assert found["sequences"] == 21
    assert found["proposed"]["lengths"] == [3, 12]
    assert figures(capsys, "model_log.log", "lengths.txt", "--model", "scorer")["sequences"] == 4 + 83
    (folder / "foreign.log").write_text(LOG.replace("scorer", "\x1b[31mscorer"))
    assert r"2 models: \x1b[31mscorer, tagger" in failure(capsys, "foreign.log")


def test_lengths_of_a_log_can_be_kept_for_packaging(capsys: Capture, folder: Path) -> None:
    (folder / "model_log.log").write_text(LOG)
    assert cli.main(["tune", "model_log.log", "--model", "tagger", "--save-lengths", "kept.txt"]) == 0
    capsys.readouterr()
    text = CONFIG.replace("[16, 32, 64, 128, 256, 330]", "{auto: 2, histogram: kept.txt}")
    (folder / "model-config.yaml").write_text(text)

    assert load_config(folder / "model-config.yaml").histogram == {3: 20, 12: 1}
    assert figures(capsys, "kept.txt", "--config", "model-config.yaml")["today"]["lengths"] == [3, 12]


def test_an_archive_tells_its_lengths_and_their_costs(capsys: Capture, tmp_path: Path) -> None:
    costs = tuple(
        MeasuredCost("sequence", Bucket(batch, length), milliseconds)
        for batch, lengths in ((1, ((4, 1.0), (8, 9.0))), (4, ((4, 8.0), (6, 8.0), (8, 24.0))))
        for length, milliseconds in lengths
    )
    archive = str(make_archive(tmp_path / "archive", costs=costs))
    (tmp_path / "lengths.txt").write_text("4:9 5:1 6:1 8:1")

    found = figures(capsys, "lengths.txt", "--archive", archive)

    assert found["today"]["lengths"] == [4, 8]
    assert found["today"]["milliseconds_per_sequence"] == (9 * 2.0 + 3 * 6.0) / 12
    assert found["proposed"]["lengths"] == [4, 8]
    fewer = figures(capsys, "lengths.txt", "--archive", archive, "--count", "1")
    assert fewer["proposed"]["milliseconds_per_sequence"] == 6.0
    assert "ms per sequence" in printed(capsys, "tune", "lengths.txt", "--archive", archive)


def test_an_archive_in_chunks_of_the_grid_is_told_to_pad_less(capsys: Capture, tmp_path: Path) -> None:
    chunked = (Variant("chunk", None, "programs/eager/any"),)
    costs = (MeasuredCost("chunk", Bucket(4, 8), 1.0),)
    archive = str(make_archive(tmp_path / "archive", kind="chunk", variants=chunked, costs=costs))

    assert cli.main(["tune", "lengths.txt", "--archive", archive]) == 0
    note = "note: this model runs in chunks of time: a sequence takes several calls, with less padding than shown\n"
    assert capsys.readouterr().err == note


def test_no_padding_is_told_for_an_engine_that_stops_each_row(capsys: Capture, folder: Path) -> None:
    (folder / "model-config.yaml").write_text(f"{CONFIG}  backend: native\n")
    found = figures(capsys, str(SAMPLE), "--config", "model-config.yaml")
    shown = printed(capsys, "tune", SAMPLE, "--config", "model-config.yaml")

    assert (found["engine"], found["pads_to"]) == ("native", "none")
    for grid in (found["today"], found["proposed"]):
        assert grid["lengths"] == [16, 32, 64, 128, 256, 330]
        assert (grid["padded_share"], grid["computed_timesteps"]) == (0, grid["useful_timesteps"])
    assert "native stops each row of a call at its own end: its recurrent layers compute no padding" in shown
    assert "Other bucket lengths save no time" in shown
    assert "limits only: up to 8 rows in a call, and up to 330 timesteps in a sequence" in shown
    assert "neuron_lstm:" not in shown


def test_an_archive_whose_engine_stops_each_row_has_no_padding(capsys: Capture, tmp_path: Path) -> None:
    costs = tuple(MeasuredCost("sequence", Bucket(4, size), 0.1) for size in (4, 8))
    archive = str(make_archive(tmp_path / "archive", shapes="any", padding_costs=costs))

    found = figures(capsys, "lengths.txt", "--archive", archive)
    assert found["pads_to"] == "none"
    assert found["today"]["padded_share"] == 0
    assert found["today"]["milliseconds_per_sequence"] == pytest.approx(0.5 / 4)
    assert found["notes"] == []
    assert "compute no padding" in printed(capsys, "tune", "lengths.txt", "--archive", archive)


def test_an_engine_that_takes_every_length_pads_by_batch(capsys: Capture, tmp_path: Path, folder: Path) -> None:
    archive = str(make_archive(tmp_path / "archive", shapes="any"))
    (folder / "model-config.yaml").write_text(f"{CONFIG}  backend: onnxruntime\n")

    configured = figures(capsys, "lengths.txt", "--config", "model-config.yaml")
    packaged = figures(capsys, "lengths.txt", "--archive", archive, "--longest", "8")

    assert (configured["pads_to"], packaged["pads_to"]) == ("call", "call")
    assert configured["today"]["padded_share"] is packaged["today"]["padded_share"] is None
    assert packaged["today"] == packaged["proposed"]
    assert "by batch" in printed(capsys, "tune", "lengths.txt", "--config", "model-config.yaml")


def test_another_engine_in_the_configuration_is_told(capsys: Capture, tmp_path: Path, folder: Path) -> None:
    """The costs are those of the archive, so its engine counts."""
    both = ("lengths.txt", "--config", "model-config.yaml", "--archive", str(make_archive(tmp_path / "archive")))

    assert figures(capsys, *both)["notes"] == []
    (folder / "model-config.yaml").write_text(f"{CONFIG}  backend: native\n")
    found = figures(capsys, *both)

    assert (found["engine"], found["pads_to"]) == ("eager", "bucket")
    assert found["notes"] == ["the figures are those of eager, as in the archive; the configuration names native"]


def test_sequences_beyond_lengths_that_are_limits_are_counted(capsys: Capture, folder: Path) -> None:
    text = CONFIG.replace("[16, 32, 64, 128, 256, 330]", "[4, 8]\n    longest: 30") + "  backend: native\n"
    (folder / "model-config.yaml").write_text(text)

    found = figures(capsys, "lengths.txt", "--config", "model-config.yaml")

    assert found["today"]["refused_sequences"] == 1  # the one of 31
    assert found["today"]["computed_timesteps"] == 3 * 50 + 5 * 20 + 9 * 10 + 30 * 2
    assert found["proposed"]["lengths"] == [4, 8]


def test_lengths_of_a_limit_are_changed_only_on_request(capsys: Capture, folder: Path) -> None:
    (folder / "model-config.yaml").write_text(f"{CONFIG}  backend: native\n")
    config = ("lengths.txt", "--config", "model-config.yaml")

    assert figures(capsys, *config, "--longest", "100")["proposed"]["lengths"] == [16, 32, 64, 100]
    assert figures(capsys, *config, "--count", "2")["proposed"]["lengths"] == [9, 330]


def test_models_without_lengths_to_choose_are_refused(capsys: Capture, tmp_path: Path) -> None:
    timeless = make_archive(tmp_path / "timeless", inputs=(TensorSpec("x", "float32", ("batch", 3)),))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "variants.json").write_text("{}")

    for archive, said in (
        (timeless, "no input has a time dimension"),
        (tmp_path / "damaged", "variants.json: format is missing"),
        (tmp_path / "none", "there is no archive"),
    ):
        assert said in failure(capsys, "lengths.txt", "--archive", str(archive))
    text = "neuron_lstm: {inputs: {x: {dtype: bool, shape: [batch]}}, buckets: {batch: [1]}}"
    (tmp_path / "model-config.yaml").write_text(text)
    assert "no input has a time dimension" in failure(capsys, "lengths.txt", "--config", "model-config.yaml")


def test_sequences_beyond_the_largest_length_may_be_served_all_the_same(capsys: Capture, folder: Path) -> None:
    (folder / "model-config.yaml").write_text(CONFIG.replace("[16, 32, 64, 128, 256, 330]", "[4, 8]\n    longest: 100"))

    assert cli.main(["tune", "lengths.txt", "--config", "model-config.yaml"]) == 0
    captured = capsys.readouterr()

    assert "note: sequences of up to 100 timesteps are served too; they are not counted here" in captured.err
    assert captured.out.endswith(", 8]\n")


def test_cut_sequences_count_where_they_are_cut(capsys: Capture, folder: Path) -> None:
    text = CONFIG.replace("[16, 32, 64, 128, 256, 330]", "[4, 8]")
    for more, refused in (("", 13), ("  overflow: truncate\n", 0)):
        (folder / "model-config.yaml").write_text(text + more)
        found = figures(capsys, "lengths.txt", "--config", "model-config.yaml")
        assert found["today"]["refused_sequences"] == refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.txt"], "there is no file none.txt: give a file of lengths or a log"),
        (["model-config.yaml"], "model-config.yaml: expected whole numbers of timesteps from 1 on"),
        (["lengths.txt", "--config", "none.yaml"], "none.yaml:1: cannot be read"),
        (["lengths.txt", "--config", "lengths.txt"], "lengths.txt:1: "),
        (["lengths.txt", "--longest", "2"], "there is no sequence to choose lengths for"),
    ],
)
def test_what_cannot_be_done_is_told(capsys: Capture, arguments: list[str], said: str) -> None:
    before = Path("lengths.txt").read_text(), Path("model-config.yaml").read_text()

    assert said in failure(capsys, *arguments)
    assert (Path("lengths.txt").read_text(), Path("model-config.yaml").read_text()) == before


WRONG = ("--count 0", "--count 257", "--count many", "--longest 0", "--longest 1e3", "--picture a.html")


@pytest.mark.parametrize("arguments", ["", *(f"a {wrong}" for wrong in WRONG)])
def test_a_wrong_command_line_ends_with_2(capsys: Capture, arguments: str) -> None:
    assert "usage" in misuse(capsys, "tune", *arguments.split())


@pytest.mark.parametrize("option", ["--save-lengths", "--picture"])
@pytest.mark.parametrize("read", ["lengths.svg", "model-config.svg"])
def test_a_file_that_is_read_is_not_overwritten(capsys: Capture, folder: Path, option: str, read: str) -> None:
    """A log may be the only record of the traffic."""
    shutil.copy(folder / "lengths.txt", folder / "lengths.svg")
    shutil.copy(folder / "model-config.yaml", folder / "model-config.svg")
    before = (folder / read).read_bytes()

    told = failure(capsys, "lengths.svg", "--config", "model-config.svg", option, read)
    assert f"give another file with {option}" in told
    assert (folder / read).read_bytes() == before
