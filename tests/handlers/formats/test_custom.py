import asyncio
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from fake_model import SUMS, TOTAL, FakeModel, make_manifest

from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.custom import load_user_codec
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RawResponse
from torchserve_neuron_lstm.handlers.service import Service

SOURCE = """
from pathlib import Path
WORDS = Path("words.txt").read_text().split()

class Words:
    def decode(self, body, content_type):
        words = body.decode().split()
        if len(words) == 1 and words[0] == "none":
            raise KeyError("a secret")
        unknown = [word for word in words if word not in WORDS]
        if unknown:
            raise ValueError(f"unknown word {unknown[0]!r}")
        return {"ids": [WORDS.index(word) for word in words]}

    def encode(self, outputs, inputs):
        return {"words": [WORDS[i] for i in inputs["ids"]], "sum": outputs["sums"][-1].item(), "sums": outputs["sums"]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    (tmp_path / "words_codec.py").write_text(SOURCE)
    (tmp_path / "words.txt").write_text("zero one two three")
    yield tmp_path
    for name in ("words_codec", "lame_codec"):
        sys.modules.pop(name, None)


def custom(decode: Callable[[bytes, str], Any], encode: Callable[[Any, Any], object]) -> SimpleNamespace:
    """A codec of two functions."""
    return SimpleNamespace(decode=decode, encode=encode, content_type="text/plain; charset=utf-8")


def ids(body: bytes, content_type: str) -> dict[str, list[int]]:
    return {"ids": list(body)}


def ask(codec: Any, *bodies: object, headers: dict[str, Any] | None = None) -> list[RawResponse]:
    manifest = make_manifest(outputs=(SUMS, TOTAL))
    service = Service(FakeModel(manifest), make_codec(manifest, ModelIdentity("m", "1"), user_codec=codec))
    return service.handle([RawRequest({"body": body}, headers or {}) for body in bodies])


def test_a_codec_turns_text_into_inputs_and_outputs_into_its_own_answer(folder: Path) -> None:
    before = Path.cwd()
    codec = load_user_codec("words_codec:Words", folder)

    (response,) = ask(codec, b"one two")

    assert Path.cwd() == before
    assert (response.status, json.loads(response.body)) == (
        200,
        {"words": ["one", "two"], "sum": 3.0, "sums": [1.0, 3.0]},
    )


def test_its_errors_stay_with_their_request(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    codec = load_user_codec("words_codec:Words", folder)

    responses = ask(codec, b"one", b"four", b"none", b"\xff", b"two two two two two two two two two", b"")

    assert [response.status for response in responses] == [200, 400, 500, 400, 413, 400]
    assert json.loads(responses[1].body)["message"] == "unknown word 'four'"
    assert b"secret" not in responses[2].body
    assert "KeyError" in caplog.text


class PanicException(BaseException):
    """An error as extensions written in Rust raise it."""


@pytest.mark.parametrize("kind", [PanicException, asyncio.CancelledError, GeneratorExit, SystemExit])
@pytest.mark.parametrize("method", ["decode", "encode"])
def test_an_error_of_a_codec_that_is_no_exception_stays_with_its_request(
    method: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """A tokenizer may raise it, or end Python; the log has it, and a request beside it in the batch is answered."""

    def fail_at_one(value: Any, other: Any) -> Any:
        if 1 in (value if method == "decode" else other["ids"].tolist()):
            raise kind("index out of bounds")
        return ids(value, other) if method == "decode" else "fine"

    codec = custom(fail_at_one, lambda *_: "fine") if method == "decode" else custom(ids, fail_at_one)

    assert [response.status for response in ask(codec, b"\1", b"\2")] == [500, 200]
    assert kind.__name__ in caplog.text
    assert "in fail_at_one" in caplog.text


def test_an_interrupt_ends_the_worker() -> None:
    """It is for the process, not for the request."""
    interrupt = Mock(side_effect=KeyboardInterrupt)

    with pytest.raises(KeyboardInterrupt):
        ask(custom(interrupt, interrupt), b"\1")


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("words_codec:Missing", "AttributeError"),
        ("no_such_codec:Words", "No module named 'no_such_codec'"),
        ("json:JSONDecoder", "another module of this name is already imported"),
        ("lame_codec:Lame", "has no method 'encode'"),
        ("lame_codec:Failing", "ZeroDivisionError"),
        ("lame_codec:Leaving", "SystemExit"),
    ],
)
def test_a_codec_that_cannot_be_made_stops_the_load(reference: str, told: str, folder: Path) -> None:
    (folder / "lame_codec.py").write_text(
        "class Lame:\n    def decode(self, body, kind): pass\nclass Failing:\n    x = property()\n"
        "    def __init__(self): 1 / 0\nclass Leaving:\n    def __init__(self): raise SystemExit\n"
    )
    with pytest.raises(RuntimeError) as refused:
        load_user_codec(reference, folder)
    assert f"codec {reference}: " in str(refused.value)
    assert told in str(refused.value)


SPELLED = "Application/JSON; charset=utf-8"


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b'{"a": [1, 2]}', SPELLED, b'{"a": [1, 2]}'),
        (bytearray(b'{"a": [1, 2]}'), SPELLED, b'{"a": [1, 2]}'),
        ({"a": [1, 2]}, SPELLED, b'{"a": [1, 2]}'),
        ("hello", SPELLED, b'"hello"'),
        ("\ud800", SPELLED, b'"\\ud800"'),
        ("", SPELLED, b'""'),
        (None, SPELLED, b"null"),
        ("hellö", "text/plain; charset=utf-8", "hellö".encode()),
    ],
)
def test_a_codec_gets_the_body_that_the_client_sent(body: object, content_type: str, expected: bytes) -> None:
    """TorchServe parses JSON, of which a text alone is a value too, and decodes other text.

    JSON that it has parsed is written again. The content type has no parameters.
    """
    decode = Mock(return_value={"ids": [1]})

    (response,) = ask(custom(decode, lambda *_: 1), body, headers={"body": {"content-type": content_type}})

    assert response.status == 200
    decode.assert_called_once_with(expected, content_type.partition(";")[0].lower())
    assert type(decode.call_args.args[0]) is bytes


def test_it_may_answer_with_bytes_of_its_own_content_type() -> None:
    (response,) = ask(custom(ids, lambda outputs, inputs: b"sum: 3"), b"\1\2")

    assert response == RawResponse(200, b"sum: 3", "text/plain; charset=utf-8")


def test_a_list_of_sequences_is_answered_by_a_list() -> None:
    def decode(body: bytes, content_type: str) -> list[dict[str, object]]:
        return [{"ids": [1, 2]}, {"ids": torch.tensor([3], dtype=torch.int32)}]

    (response,) = ask(custom(decode, lambda outputs, inputs: [inputs["ids"], outputs["sums"]]), b"x")

    assert json.loads(response.body) == [[[1, 2], [1.0, 3.0]], [[3], [3.0]]]


def test_a_codec_that_fills_one_tensor_again_and_again_answers_each_request_for_itself() -> None:
    buffer = torch.zeros(2, dtype=torch.int64)

    def decode(body: bytes, content_type: str) -> dict[str, object]:
        buffer.copy_(torch.tensor([*body]))
        return {"ids": buffer}

    first, second = ask(custom(decode, lambda outputs, inputs: outputs["sums"]), b"\1\2", b"\3\4")

    assert [json.loads(one.body) for one in (first, second)] == [[1.0, 3.0], [3.0, 7.0]]


@pytest.mark.parametrize("made", [None, 7, [1], "ids", {"ids": object()}, [{"ids": [1]}, None]])
def test_a_decode_that_returns_no_inputs_is_refused_alone(made: object) -> None:
    codec = custom(lambda body, kind: made if body == b"bad" else {"ids": [1]}, lambda outputs, inputs: 1)

    assert [response.status in (400, 500) for response in ask(codec, b"bad", b"good")] == [True, False]


@pytest.mark.parametrize(
    ("made", "content_type"),
    [
        *((made, "text/plain") for made in (object(), {1: 2}, float("nan"), [b"bytes"], {"a": {1, 2}})),
        *((b"x", kind) for kind in (None, 7, "", "text", "text/plain\r\nx: y", "text/ü")),
    ],
)
def test_an_answer_that_json_has_not_or_a_content_type_that_would_cost_the_worker_is_a_500(
    made: object, content_type: object
) -> None:
    """TorchServe sends the content type unchanged."""
    codec = custom(ids, lambda outputs, inputs: made)
    codec.content_type = content_type

    assert ask(codec, b"\1")[0].status == 500


def test_a_value_error_while_encoding_is_told_to_the_client() -> None:
    def encode(outputs: object, inputs: object) -> object:
        raise ValueError("x" * 10_000)

    (response,) = ask(custom(ids, encode), b"\1")

    assert response.status == 400
    assert len(response.body) < 1000
