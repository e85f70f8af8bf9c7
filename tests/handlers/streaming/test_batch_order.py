import pytest
from session_service import ID, STEP, ask, make_service, piece

from torchserve_neuron_lstm.config.manifest_values import RequestLimits
from torchserve_neuron_lstm.handlers.formats import Codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import InferenceRequest


def test_pieces_of_one_session_in_one_batch_are_applied_in_turn_and_those_without_a_step_last() -> None:
    service = make_service()
    ask(service, *(piece([1], id=name, start="true") for name in "abc"))

    numbered = ask(service, piece([4], id="a", step="3"), piece([2, 3], id="a", step="1"))
    as_they_came = ask(service, piece([2, 3], id="b"), piece([4], id="b"))

    assert [body["total"] for _, body in numbered] == [10, 6]
    assert [body["total"] for _, body in as_they_came] == [6, 10]

    mixed = ask(service, piece([4], id="c", step="3"), piece([2, 3], id="c", step="1"), piece([5], id="c"))
    assert [body["total"] for _, body in mixed] == [10, 6, 15]


def test_a_piece_is_not_applied_in_the_place_of_the_failed_one_before_it(caplog: pytest.LogCaptureFixture) -> None:
    """It would be applied out of order, without any report."""
    service = make_service()
    ask(service, piece([1], id="a", start="true"))

    failed, behind, other = ask(service, piece([66], id="a"), piece([2], id="a"), piece([5], id="b", start="true"))

    assert (failed[0], behind[0], behind[1]["type"]) == (500, 409, "ChunkBeforeFailed")
    assert other[1]["total"] == 5
    assert ask(service, piece([2], id="a"))[0][1]["total"] == 3
    assert "a kernel failed" in caplog.text


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (["x"], 400),
        ([1] * 101, 413),
        ([1] * 60, 413),
        ({"instances": [[1], [2]]}, 400),
        ({"inputs": [{"name": "ids", "shape": [1], "datatype": "INT64", "data": [-1]}]}, 400),
    ],
)
def test_a_piece_is_not_applied_in_the_place_of_one_before_it_that_could_not_be_decoded(
    refused: object, status: int
) -> None:
    service = make_service(manifest={"limits": RequestLimits(timesteps=100)}, max_response_bytes=120)
    ask(service, piece([1], id="a", start="true"))

    answers = ask(
        service,
        piece(refused, id="a"),
        piece([2], id="a"),
        piece([3], id="a", step="1"),
        piece([5], id="b", start="true"),
    )

    assert [answer[0] for answer in answers] == [status, 409, 200, 200]
    assert answers[1][1]["type"] == "ChunkBeforeFailed"
    assert (answers[2][1]["total"], answers[3][1]["total"]) == (4, 5)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"[1, 2", {}),
        (b"[" + b" " * 7_000_000 + b"1]", {}),
        (b"[2]", {STEP: "x"}),
        (b'{"ids": [2], "ts_request_sequence_id": "other"}', {}),
        (b"[2]", {"Content-Encoding": "gzip"}),
        (b"[2]", {"Inference-Header-Content-Length": "999"}),
    ],
)
def test_a_piece_is_not_applied_in_the_place_of_one_before_it_whose_session_only_a_header_tells(
    body: bytes, headers: dict[str, str]
) -> None:
    service = make_service()
    ask(service, piece([1], id="a", start="true"))

    bad = RawRequest({"body": body}, {"Content-Type": "application/json", ID: "a", **headers})
    refused, behind = ask(service, bad, piece([2], id="a"))

    assert refused[0] >= 400
    assert (behind[0], behind[1]["type"]) == (409, "ChunkBeforeFailed")


def test_a_piece_is_not_applied_in_the_place_of_one_before_it_that_failed_unexpectedly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = make_service()
    ask(service, piece([1], id="a", start="true"))
    decode = Codec.decode

    def fail_at_seven(codec: Codec, request: RawRequest) -> InferenceRequest:
        if request.row == {"body": [7]}:
            raise KeyError("a bug")
        return decode(codec, request)

    monkeypatch.setattr(Codec, "decode", fail_at_seven)
    answers = ask(service, piece([7], id="a"), piece([2], id="a"))

    assert [(answer[0], answer[1]["type"]) for answer in answers] == [
        (500, "InternalError"),
        (409, "ChunkBeforeFailed"),
    ]
    assert "a bug" in caplog.text
