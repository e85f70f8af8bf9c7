"""Responses to clients, metrics and the management API, by archives of the current code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import torchserve_neuron_lstm

from .conftest import Packaged
from .projects import DATA
from .serving import JSON, Job, row, rows, serve
from .shapes import keys

pytestmark = pytest.mark.timeout(300)
METRICS = Path(torchserve_neuron_lstm.__path__[0]) / "config" / "metrics.yaml"
REFUSALS: dict[str, dict[str, int]] = json.loads((DATA / "refusals.json").read_text())
DESCRIBE = {"body": None, "headers": {"describe": "True"}}
KEY = "00112233445566778899aabbccddeeff" * 2


def result_of(packaged: Packaged, name: str, place: Path, *batches: Sequence[Any], **environment: str) -> Any:
    """The result of a host for rows sent to an archive that was just packaged."""
    folder = packaged.unpacked(name, place / "unpacked")
    given = {"NEURON_LSTM_SESSIONS": str(place / "sessions"), **environment}
    (result,) = serve([Job(folder, name, batches, given, METRICS)], place)
    assert "error" not in result, result
    return result


def refusals(result: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The type and status of every answer; each refusal has exactly code, type and message."""
    found = []
    for answer in (answer for batch in result["batches"] for answer in batch):
        if answer["status"] == 200:
            found.append(("", 200))
            continue
        body = json.loads(answer["body"])
        assert list(body) == ["code", "type", "message"]
        assert body["code"] == answer["status"]
        found.append((body["type"], answer["status"]))
    return found


def expected(*kinds: str) -> list[tuple[str, int]]:
    """The refusals of these types, with their promised statuses; "" for an answer."""
    known = {"": 200, **REFUSALS["README.md"], **REFUSALS["docs/sessions.md"]}
    return [(kind, known[kind]) for kind in kinds]


def emitted(result: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Name and type of each metric in the log."""
    found = (re.match(r"\[METRICS\](\w+)\.\w+:[-\d.]+\|#.*\|#type:(\w+)\|#hostname:", line) for line in result["log"])
    return {(match[1], match[2].lower()) for match in found if match}


def session(step: int | None, *flags: str, named: str = "one") -> dict[str, str]:
    """The headers of a request of a session."""
    told = {"ts_request_sequence_id": named, **{f"ts_request_sequence_{flag}": "true" for flag in flags}}
    return told if step is None else {**told, "ts_request_sequence_step": str(step)}


def test_requests_of_whole_sequences_are_refused_and_answered_as_promised(packaged: Packaged, tmp_path: Path) -> None:
    """The refusals of every request, the formats, the keys of the description, and the metrics."""
    v2 = {"inputs": [{"name": "ids", "shape": [2], "datatype": "INT64", "data": [5, 17]}]}
    result = result_of(
        packaged,
        "tagger_eager",
        tmp_path,
        [
            {"body": "{", "headers": JSON},
            row([1, 99]),
            row([1], {"Accept": "application/x-npy"}),
            row({"instances": [[1]] * 1025}),
            row([1], {"explain": "True"}),
            row(list(range(12))),
            row({"ids": [1, 2, 3]}),
        ],
        [row({"instances": [[1, 2], {"ids": [3]}]}), row(v2)],
        [DESCRIBE],
    )

    assert refusals(result) == expected(
        *("MalformedBody", "InvalidInput", "NotAcceptable", "TooManySequences", "ExplanationsNotSupported"),
        *("", "", "", "", ""),
    )
    plain = result["batches"][0][6]
    v1, v2_answer = (json.loads(answer["body"]) for answer in result["batches"][1])
    description = json.loads(result["batches"][2][0]["body"])
    kept = json.loads((DATA / "keys.json").read_text())
    assert plain["headers"] == {"content-type": "application/json"}
    assert keys(json.loads(plain["body"])) == ["label", "tags"]
    assert keys(v1) == ["predictions", "predictions[].label", "predictions[].tags"]
    assert [list(one) for one in v2_answer["outputs"]] == [["name", "shape", "datatype", "data"]] * 2
    assert sorted(v2_answer) == kept["v2"]
    assert keys(description) == kept["describe"]["tagger_eager"]
    assert emitted(result) == {
        (name, kind) for name, kind in declared() if "repeated" not in name and "expired" not in name
    }
    assert any(re.fullmatch(r"neuron_lstm lengths [\d: ]+", line) for line in result["log"])


def declared() -> set[tuple[str, str]]:
    """Name and type of our metrics, by the file that a server is given."""
    metrics = yaml.safe_load(METRICS.read_text())["model_metrics"]
    return {
        (one["name"], kind) for kind, declared in metrics.items() for one in declared if "neuron_lstm" in one["name"]
    }


def test_the_metrics_file_declares_what_it_declared() -> None:
    """Dashboards depend on names, units and dimensions; TorchServe depends on the order of the dimensions."""
    assert yaml.safe_load(METRICS.read_text()) == json.loads((DATA / "metrics.json").read_text())


def test_answers_that_are_too_large(packaged: Packaged, tmp_path: Path) -> None:
    """The server's own limit applies."""
    result = result_of(packaged, "tagger_eager", tmp_path, [row([1, 2, 3])], TS_MAX_RESPONSE_SIZE="20")
    assert refusals(result) == expected("AnswerTooLarge")


def test_exact_lengths_and_labels(packaged: Packaged, tmp_path: Path) -> None:
    """Padding would falsify this model: 413 beyond its largest length. Its answer is an object of classes."""
    frames = [[0.5, 1.0, -0.5]] * 5
    result = result_of(packaged, "median_eager", tmp_path, [row(frames[:3]), row(frames), row(frames[:4])])

    assert refusals(result) == [*expected("LengthNotAccepted"), ("LengthNotAccepted", 413), ("", 200)]
    assert set(json.loads(result["batches"][0][2]["body"])) == {"low", "middle", "high", "highest"}


def test_a_codec_has_its_content_type_and_its_errors_are_those_of_the_server(
    packaged: Packaged, tmp_path: Path
) -> None:
    """A codec has its own content type; an error of the codec is a server error."""
    text = {"Content-Type": "text/plain"}
    bodies = [{"body": body, "headers": text} for body in ("1 2", "19", "one", "1 2 3 4 5 6 7 8 9")]
    result = result_of(packaged, "kernel_openvino", tmp_path, bodies)

    assert refusals(result) == expected("", "InternalError", "InvalidInput", "SequenceTooLong")
    assert result["batches"][0][0]["headers"] == {"content-type": "text/plain"}


def test_a_chunk_of_a_session_is_applied_once_and_refused_as_promised(packaged: Packaged, tmp_path: Path) -> None:
    """Refusals, keys and headers of the answers are as promised, and a chunk is applied once."""
    piece = [1, 2]
    result = result_of(
        packaged,
        "stream_disk",
        tmp_path,
        [row(piece, session(None, "start"))],
        [row(piece, session(2))],
        [row(piece, session(2))],
        [row([3, 3], session(2))],
        [row(piece, session(9))],
        [row(piece, session(None, "start"))],
        [row(piece, session(None, named="other"))],
        [row(piece, session(None, named="a b"))],
        [row(piece, {"ts_request_sequence_step": "x"})],
        [
            row(
                {
                    "ids": piece,
                    "ts_request_sequence_id": "one",
                    "ts_request_sequence_step": 4,
                    "ts_request_sequence_end": True,
                }
            )
        ],
        [row(piece, session(6))],
        [row(piece), row(piece), row(piece), row(piece), row(piece)],
        [DESCRIBE],
    )

    assert refusals(result) == expected(
        *("", "", "", "StepTaken", "StepGap", "SessionExists", "SessionUnknown", "InvalidSessionId", "InvalidInput"),
        *("", "SessionEnded", "", "", "", "", "TooManySessions", ""),
    )
    first, second, again = (batch[0] for batch in result["batches"][:3])
    assert second == again
    assert first["headers"] == {
        "content-type": "application/json",
        "ts_request_sequence_id": "one",
        "ts_request_sequence_step": "2",
    }
    assert list(json.loads(first["body"])) == ["ts_request_sequence_id", "ts_request_sequence_step", "scores"]
    assert result["batches"][11][4]["headers"]["Retry-After"].isdigit()
    kept = json.loads((DATA / "keys.json").read_text())["describe"]["stream_disk"]
    assert keys(json.loads(result["batches"][12][0]["body"])) == kept
    assert ("neuron_lstm_repeated_total", "counter") in emitted(result)
    assert any(path.is_file() for path in (tmp_path / "sessions").rglob("*"))


def test_a_session_continues_by_the_token_of_its_last_answer(packaged: Packaged, tmp_path: Path) -> None:
    """Clients carry sessions: the token of one answer continues the session in the next request."""
    first = result_of(
        packaged,
        "stream_client",
        tmp_path,
        [row([1, 2])],
        [row([1], {"X-Session": "a", "X-Step": "2"})],
        STREAM_KEY=KEY,
    )
    (told,) = first["batches"][0]
    answer = json.loads(told["body"])
    assert list(answer) == ["X-Session", "X-Step", "ts_request_sequence_token", "scores"]
    assert refusals(first)[1:] == expected("SessionUnknown")

    going_on = {"ids": [3], "X-Session": answer["X-Session"], "X-Step": 2}
    token = answer["ts_request_sequence_token"]
    second = result_of(
        packaged,
        "stream_client",
        tmp_path / "again",
        [row({**going_on, "ts_request_sequence_token": token})],
        [row({**going_on, "ts_request_sequence_token": token[:-4] + "AAAA"})],
        STREAM_KEY=KEY,
    )
    assert refusals(second) == expected("", "InvalidToken")
    assert json.loads(second["batches"][0][0]["body"])["X-Step"] == 3


@pytest.mark.long
def test_the_description_of_an_emulated_device(packaged: Packaged, tmp_path: Path) -> None:
    """The description includes the values that its programs carry from chunk to chunk."""
    result = result_of(packaged, "speech_neuronx", tmp_path, [DESCRIBE], rows("speech_neuronx"))
    kept = json.loads((DATA / "keys.json").read_text())["describe"]["speech_neuronx"]
    assert keys(json.loads(result["batches"][0][0]["body"])) == kept


@pytest.mark.parametrize("page", sorted(REFUSALS))
def test_the_tables_of_refusals_are_those_that_were_kept(page: str) -> None:
    """The table has every type of error for clients, with its status."""
    lines = (Path(__file__).parents[2] / page).read_text().splitlines()
    found = {
        kind: int(match[1])
        for line in lines
        if (match := re.match(r"\| (4\d\d|5\d\d) \| (`[^|]+) \|", line))
        for kind in re.findall(r"`(\w+)`", match[2])
    }
    assert found == REFUSALS[page]
