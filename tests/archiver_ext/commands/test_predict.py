import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_model import GRID
from printed import Capture, refusal
from tiny_archive import VOCABULARY, make_archive, sums_of

from torchserve_neuron_lstm.archiver_ext.cli import main
from torchserve_neuron_lstm.config.manifest_values import RequestLimits
from torchserve_neuron_lstm.inference.request_lines import WINDOW_LINES

MODULE = "torchserve_neuron_lstm.archiver_ext.cli"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("archives") / "tiny")


def write(file: Path, lines: Sequence[object]) -> Path:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    file.write_text(text, "utf-8")
    return file


def predict(archive: Path, lines: Sequence[object], folder: Path) -> tuple[int, list[Any]]:
    output = folder / "answers.jsonl"
    requests = write(folder / "requests.jsonl", lines)
    code = main(["predict", str(archive), str(requests), "-o", str(output), "--threads", "1"])
    return code, [json.loads(line) for line in output.read_text("utf-8").splitlines()]


def test_every_line_is_answered_in_its_place(archive: Path, tmp_path: Path) -> None:
    lines = [[(7 * step + row) % VOCABULARY for step in range(row % GRID.lengths[-1] + 1)] for row in range(2500)]
    code, answers = predict(archive, lines, tmp_path)

    assert (code, len(answers)) == (0, len(lines))
    for ids, answer in list(zip(lines, answers, strict=True))[::97]:
        torch.testing.assert_close(torch.tensor(answer), sums_of(ids), atol=1e-5, rtol=1e-5)


def test_a_line_may_have_any_json_form_of_a_request(archive: Path, tmp_path: Path) -> None:
    entry = {"name": "ids", "shape": [2], "datatype": "INT64", "data": [5, 17]}
    code, answers = predict(
        archive, [[5, 17], {"ids": [5, 17]}, {"instances": [[5, 17]]}, {"inputs": [entry]}], tmp_path
    )

    assert code == 0
    assert answers[0] == answers[1] == answers[2]["predictions"][0]
    assert answers[3]["outputs"][0]["shape"] == [2, 3]


def test_a_bad_line_becomes_an_error_object_in_its_place(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    lines: list[object] = [[1, 2], "no JSON", [VOCABULARY], "", [3], [1] * 9]
    code, answers = predict(archive, lines, tmp_path)

    assert code == 1
    refused = [(answer["line"], answer["type"]) for answer in answers if isinstance(answer, dict)]
    assert not any("outputs" in answer or "model_name" in answer for answer in answers)  # keys of V2
    assert refused == [(2, "MalformedBody"), (3, "InvalidInput"), (4, "MalformedBody"), (6, "SequenceTooLong")]
    assert [len(answer) for answer in answers if isinstance(answer, list)] == [2, 1]
    assert "refused: 4 of 6 lines, the first is line 2" in capsys.readouterr().err


def test_a_file_of_nothing_has_no_answers(archive: Path, tmp_path: Path) -> None:
    assert predict(archive, [], tmp_path) == (0, [])


def test_a_line_that_is_too_long_is_refused_and_the_next_is_answered_without_bounds_of_time(tmp_path: Path) -> None:
    """Only as much of it is kept as a body may have. Nobody waits behind a file."""
    limits = RequestLimits(body_bytes=40, milliseconds=1e-9, timeout_ms=1e-9)
    code, answers = predict(
        make_archive(tmp_path / "tiny", limits=limits), [[1], "[" + "1, " * 5000 + "1]", [2]], tmp_path
    )

    assert code == 1
    assert answers[1]["type"] == "BodyTooLarge"
    assert [len(answers[0]), len(answers[2])] == [1, 1]


def test_the_codec_of_the_archive_answers_as_on_a_server(tmp_path: Path) -> None:
    code, answers = predict(make_archive(tmp_path / "tiny", codec="codec_of_tests:Codec"), ["5 17", "x"], tmp_path)

    assert code == 1
    assert answers[0] == " ".join(f"{row[0]:.3f}" for row in sums_of([5, 17]))
    assert answers[1]["type"] == "InvalidInput"


@pytest.mark.ci
def test_standard_input_and_output_are_streams(archive: Path) -> None:
    command = [sys.executable, "-m", MODULE, "predict", str(archive), "-", "--threads", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"[1, 2]\n" * 2 * WINDOW_LINES)
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.stdout.read().count(b"\n") == 2 * WINDOW_LINES - 2
        assert process.wait() == 0


def test_an_unfinished_run_leaves_the_former_answers(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text("former\n", "utf-8")
    code = main(["predict", str(archive), str(tmp_path / "missing.jsonl"), "-o", str(tmp_path / "answers.jsonl")])

    assert code == 1
    assert [file.name for file in tmp_path.iterdir()] == ["answers.jsonl"]
    assert (tmp_path / "answers.jsonl").read_text("utf-8") == "former\n"


@pytest.mark.ci
def test_a_reader_that_ends_early_is_no_defect(archive: Path, tmp_path: Path) -> None:
    requests = write(tmp_path / "requests.jsonl", [[1, 2]] * 20_000)
    command = [sys.executable, "-m", MODULE, "predict", str(archive), str(requests), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b"error: the reader of standard output ended before everything was written\n"
        assert process.wait() == 1


def test_neither_the_archive_nor_the_requests_are_overwritten(archive: Path, tmp_path: Path, capsys: Capture) -> None:
    file = Path(shutil.make_archive(str(tmp_path / "tiny"), "zip", archive))
    requests, link = write(tmp_path / "requests.jsonl", [[1]]), tmp_path / "link.jsonl"
    link.symlink_to(requests)
    before = file.read_bytes()

    for output, told in (
        (file, "is the archive: give another file"),
        (link, "is the file of requests: give another file with -o"),
    ):
        assert told in refusal(capsys, "predict", file, requests, "-o", output)
    assert (file.read_bytes(), requests.read_text("utf-8")) == (before, "[1]\n")


def test_a_line_cannot_ask_for_bytes(archive: Path, tmp_path: Path) -> None:
    """Its answer is a line of JSON."""
    entry = {"name": "ids", "shape": [2], "datatype": "INT64", "data": [5, 17]}
    code, answers = predict(archive, [{"inputs": [entry], "parameters": {"binary_data_output": True}}], tmp_path)

    assert code == 1
    assert answers[0]["message"] == "a line cannot hold bytes: leave out binary_data and its like"


def test_an_archive_may_be_a_folder_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_archive(tmp_path / "tiny", codec="codec_of_tests:Codec")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)

    for _ in range(2):
        assert predict(Path("tiny"), ["5 17"], tmp_path)[0] == 0
    assert sys.path == before


def test_a_codec_that_cannot_be_loaded_is_told(tmp_path: Path, capsys: Capture) -> None:
    archive = make_archive(tmp_path / "tiny", codec="codec_of_tests:Missing")
    error = refusal(capsys, "predict", archive, write(tmp_path / "requests.jsonl", [[1]]))
    assert "codec codec_of_tests:Missing" in error
    assert "bug" not in error
