import json
import math
from typing import Any
from unittest import mock

import orjson
import pytest
import torch
from fake_context import FakeContext
from fake_model import FRAMES, IDS, SUMS, TOTAL, FakeModel, make_manifest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.handlers.formats import json_formats, make_codec
from torchserve_neuron_lstm.handlers.formats.json_text import fast_json
from torchserve_neuron_lstm.handlers.formats.npy import write_npy
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RequestError
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.torchserve import handle

MANIFESTS = [
    make_manifest(),
    make_manifest((IDS, FRAMES), (SUMS, TOTAL)),
    make_manifest((TensorSpec("inputs", "float32", ("batch", "time", 2)),), overflow="truncate"),
    make_manifest((TensorSpec("instances", "int64", ("batch", "time")),), shortest=2),
]
V2 = {"name": "ids", "shape": [2], "datatype": "INT64", "data": [1, 2]}
VALID: list[Any] = [
    [1, 2, 3],
    {"ids": [1, 2], "frames": [[0.5, 1], [2, 3]]},
    {"instances": [[1, 2], [3]]},
    {"id": "1", "model_name": "m", "inputs": [V2, V2 | {"shape": [1, 1], "data": [[7]]}]},
    {"inputs": [[1, 2], [3, 4]]},
]
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
names = st.sampled_from(sorted({"ids", "frames", "inputs", "instances", "model_name", "id", *V2}))
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=15
)
headers = st.dictionaries(
    st.sampled_from(["accept", "Accept", "content-type", "describe", "explain", "body", "x"]),
    st.sampled_from(["application/x-npy", "True", "application/json", "", "a;b,c"])
    | st.fixed_dictionaries({"content-type": st.sampled_from(["application/x-npy", "application/json", ""])}),
    max_size=4,
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(deeper for key, part in inner for deeper in _places(part, (*place, key)))]


def _replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = _replaced(value[place[0]], place[1:], new)
    return copy


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A valid body with any one part replaced."""
    body = draw(st.sampled_from(VALID))
    return _replaced(body, draw(st.sampled_from(_places(body))), draw(values))


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytearray:
    whole = st.sampled_from([*(json.dumps(body).encode() for body in VALID), write_npy(torch.tensor([1, 2, 3]))])
    content = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    return content[: draw(st.integers(0, len(content)))]


bodies = values | mutated() | damaged_bytes() | st.binary(max_size=40) | st.text(max_size=20)
rows = st.fixed_dictionaries({"body": bodies}) | st.dictionaries(
    st.sampled_from(["body", "data", "file", "[1]", ""]), bodies, max_size=2
)


@given(st.sampled_from(MANIFESTS), st.lists(st.tuples(rows, headers), max_size=4), st.booleans())
def test_whatever_arrives_every_row_gets_one_answer_and_good_ones_theirs(
    manifest: Manifest, given_rows: list[tuple[Any, Any]], last: bool
) -> None:
    good = {"body": {spec.name: [[1, 2]] * 4 if len(spec.shape) == 3 else [1] * 4 for spec in manifest.inputs}}
    place = len(given_rows) if last else 0
    given_rows.insert(place, (good, {}))
    model = FakeModel(manifest, poison=math.nan)
    service = Service(model, make_codec(manifest, ModelIdentity("m", "1")), {"described": 1})
    context = FakeContext(headers=[header for _, header in given_rows])

    answers = handle(service, [row for row, _ in given_rows], context)

    assert len(answers) == len(given_rows) == len(context.content_types)
    assert place not in context.statuses
    for index, answer in enumerate(answers):
        if context.content_types[index] == "application/json":
            told = json.loads(answer, parse_constant=_refuse)
            assert index not in context.statuses or told["code"] == context.statuses[index]
            assert context.statuses.get(index) != 500 or told["type"] == "AnswerNotFinite"


AWKWARD = [
    *("1", "2.5", "-0", "-0.0", "1e2", "1E400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity", "01", "1.", "+1"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616", "-9223372036854775809", "1" * 400),
    *("1" * 5000, "0." + "3" * 400, "true", "null", "[]", "[1, 2]", "[" * 600, '"a"', '"\\ud800"', '"\\ud83d\\ude00"'),
]
PLACES = [
    *(
        *("@", " [@]\n", "[@] ]", "\ufeff[@]", "[[@], [@]]"),
        *('{"ids": [@], "frames": [[@, 1]]}', '{"inputs": [[@, 1], [@, 2]]}'),
    ),
    *('{"ids": [1], "ids": [@]}', '{"ids": [1, 2], @: 1}', '{"instances": [[@], [1]]}', '{"instances": [@, 1]}'),
    '{"inputs": [{"name": "ids", "shape": [1], "datatype": "INT64", "data": [@]}], "id": @}',
    '{"inputs": [{"name": "ids", "shape": [@], "datatype": "INT64", "data": [1]}]}',
]


@st.composite
def awkward_texts(draw: st.DrawFn) -> bytes:
    """JSON, or nearly JSON, in forms that readers of JSON treat differently."""
    text = draw(st.sampled_from(PLACES))
    while "@" in text:
        text = text.replace("@", ", ".join(draw(st.lists(st.sampled_from(AWKWARD), max_size=3))), 1)
    return text.encode()


def _outcome(body: bytes, manifest: Manifest) -> object:
    try:
        request = make_codec(manifest, ModelIdentity("m", "1")).decode(RawRequest({"body": body}))
    except RequestError as error:
        return error.status, error.kind, error.message
    tensors = [[(tensor.dtype, tensor.tolist()) for tensor in item.tensors] for item in request.sequences]
    lengths = [sequence.length for sequence in request.sequences]
    return request.format.name, request[2:], lengths, repr(tensors)


def _check_same_outcome(body: bytes, manifest: Manifest) -> None:
    assert fast_json() is orjson
    fast = _outcome(body, manifest)
    with mock.patch.object(json_formats, "fast_json", return_value=None):
        assert _outcome(body, manifest) == fast


@given(
    st.sampled_from(MANIFESTS), awkward_texts() | damaged_bytes() | (values | mutated()).map(json.dumps).map(str.encode)
)
def test_a_body_is_the_same_request_or_refusal_with_and_without_orjson(manifest: Manifest, body: bytes) -> None:
    _check_same_outcome(body, manifest)


@pytest.mark.parametrize("value", AWKWARD, ids=lambda value: value[:24])
def test_what_readers_of_json_disagree_about_is_the_same_with_and_without_orjson(value: str) -> None:
    for manifest in MANIFESTS:
        for place in PLACES:
            _check_same_outcome(place.replace("@", value).encode(), manifest)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")
