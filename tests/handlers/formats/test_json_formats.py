import gc
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_model import FRAMES, IDS, SUMS, TOTAL, make_manifest

from torchserve_neuron_lstm.bucketing.shapes import TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.handlers.formats import make_codec
from torchserve_neuron_lstm.handlers.formats.npy import write_npy
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import InferenceRequest, ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RequestError

ONE = make_manifest()
TWO = make_manifest(inputs=(IDS, FRAMES), outputs=(SUMS, TOTAL))
TENSOR = {"name": "ids", "shape": [3], "datatype": "INT64", "data": [1, 2, 3]}


def decode(raw: RawRequest, manifest: Manifest = ONE) -> InferenceRequest:
    return make_codec(manifest, ModelIdentity("model", "1.0")).decode(raw)


def row(value: object, content_type: str = "application/json", **headers: str) -> RawRequest:
    return RawRequest({"body": value}, {"body": {"content-type": content_type}, **headers})


def refusal(raw: RawRequest, manifest: Manifest = ONE) -> RequestError:
    with pytest.raises(RequestError) as refused:
        decode(raw, manifest)
    return refused.value


def ids_of(request: InferenceRequest) -> list[list[int]]:
    return [item.tensors[0].tolist() for item in request.sequences]


@pytest.mark.parametrize("wrap", [json.loads, str.encode, lambda text: bytearray(text.encode()), str])
@pytest.mark.parametrize("field", ["body", "data"])
def test_a_body_is_the_same_however_torchserve_hands_it_over(wrap: Callable[[str], Any], field: str) -> None:
    assert ids_of(decode(RawRequest({field: wrap('{"ids": [1, 2, 3]}')}), ONE)) == [[1, 2, 3]]


def test_a_model_of_one_input_takes_a_bare_array_and_one_of_several_takes_names_in_any_order() -> None:
    request = decode(row([1, 2, 3]), ONE)

    assert (request.format.name, ids_of(request), request.sequences[0].length) == ("PLAIN", [[1, 2, 3]], 3)
    assert "send an object with 'ids', 'frames'" in refusal(row([1, 2, 3]), TWO).message
    by_name = decode(row({"frames": [[0, 1], [2, 3]], "ids": [1, 2]}), TWO).sequences[0].tensors
    assert [tensor.tolist() for tensor in by_name] == [[1, 2], [[0.0, 1.0], [2.0, 3.0]]]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"ids": [1]}, "missing: 'frames'"),
        ({}, "missing: 'ids', 'frames'"),
        ({"ids": [1], "frames": [[0, 0]], "x": 1}, "unknown: 'x'"),
        (
            {"ids": [1], "frames": [[0, 0]], "lengths": [1]},
            "unknown: 'lengths'; the server counts the timesteps itself",
        ),
        ({"ids": [1, 2], "frames": [[0, 0]]}, "input 'frames' has 1 timesteps, but input 'ids' has 2"),
        ({"ids": [1], "frames": [[0, 0, 0]]}, "input 'frames': dimension 1 has 3 values, expected 2"),
    ],
)
def test_inputs_that_are_not_those_declared_are_refused(body: object, told: str) -> None:
    assert told in refusal(row(body), TWO).message


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (RawRequest({}), "no body"),
        (row(b""), "the body is empty"),
        (row(""), "the body is empty"),
        (row(None), "found null"),
        (row(b"[1, 2"), "not JSON: Expecting ',' delimiter at line 1, column 6"),
        (row(b"\xff\xfe["), "not text in UTF-8"),
        (row(b"[" * 100_000), "nested too deep"),
        (row(b"[" + b"1" * 5000 + b"]"), "too many digits"),
        (row(json.dumps(dict.fromkeys(range(100_001))).encode()), "100001 names or more: too many"),
        (row(b'{"a" :0,' * 100_001), "names or more: too many"),
        (row(b"[NaN]"), "value 0 is a float (nan)"),
        (row({"instances": 3}), "instances must be a list"),
        (row({"instances": []}), "instances is empty"),
        (row({"instances": [[1]] * (1025)}), "one request may have at most 1024"),
        (row({"instances": [[1], [2, 3], {"ids": [1, "a"]}]}), "instances[2]: input 'ids': expected int64 [time]"),
        (row({"instances": [[1], [[2]]]}), "instances[1]: input 'ids': "),
        (RawRequest({"[1, 2, 3]": b""}), "curl -d needs -H 'Content-Type: application/json'"),
        (RawRequest({'{"ids": [1]}': b""}), "curl -d needs -H 'Content-Type: application/json'"),
        (RawRequest({}, {"Content-Type": "application/x-www-form-urlencoded"}), "the body came as a web form"),
        (RawRequest({}, {"content-type": "multipart/form-data; boundary=x"}), "the body came as a web form"),
        (row("abc", "application/json"), "found a string where dimension 0 should be a list"),
        (RawRequest({"file": b"[1]"}), "no field 'body' or 'data'"),
        (row(b"\x93NUMPY"), ".npy"),
        (row(b"[1]", "application/x-npy"), ".npy: the body does not begin"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(raw: RawRequest, told: str) -> None:
    error = refusal(raw)

    assert error.status in (400, 413)
    assert told in error.message


def test_instances_are_sequences_of_their_own_by_name_or_bare() -> None:
    request = decode(row({"instances": [[1, 2], {"ids": [3]}]}), ONE)

    assert (request.format.name, ids_of(request)) == ("V1", [[1, 2], [3]])


@pytest.mark.parametrize("name", ["inputs", "instances"])
def test_an_input_may_be_called_as_a_protocol_calls_its_own(name: str) -> None:
    """A list of numbers is then the input, and a V2 tensor is still V2."""
    manifest = make_manifest(inputs=(TensorSpec(name, "int64", ("batch", "time")),))

    assert decode(row({name: [1, 2]}), manifest).format.name == "PLAIN"
    assert decode(row({"inputs": [TENSOR | {"name": name}]}), manifest).format.name == "V2"
    assert "input" in refusal(row({name: [{"name": name}]}), manifest).message


def test_v2_sequences_come_one_entry_each_or_as_one_tensor_with_a_batch() -> None:
    ragged = decode(row({"id": "7", "inputs": [TENSOR, TENSOR | {"shape": [1], "data": [9]}]}), ONE)
    batched = decode(row({"inputs": [TENSOR | {"shape": [2, 2], "data": [1, 2, 3, 4]}]}), ONE)
    nested = decode(row({"inputs": [TENSOR | {"shape": [2, 2], "data": [[1, 2], [3, 4]]}]}), ONE)

    assert (ids_of(ragged), ragged.id, ragged.batched) == ([[1, 2, 3], [9]], "7", False)
    assert (ids_of(batched), batched.id, batched.batched) == ([[1, 2], [3, 4]], "", True)
    assert ids_of(nested) == ids_of(batched)

    # A model that answers by its own code may return outputs of several sizes.
    text, _ = batched.format.encode(batched, [(torch.ones(2, 3),), (torch.ones(1, 3),)])
    assert [output["shape"] for output in json.loads(text)["outputs"]] == [[2, 3], [1, 3]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "x"}, "inputs[0]: the model has no input 'x': its inputs are 'ids'"),
        ({"name": ["ids"]}, "no input a list"),
        ({"datatype": "FP32"}, "datatype 'FP32' is not accepted: send INT64"),
        ({"datatype": "BYTES"}, "datatype 'BYTES' is not accepted"),
        ({"datatype": {}}, "datatype an object is not accepted"),
        ({"shape": [4]}, "shape [4] needs 4 values, data has 3"),
        *(({"shape": shape}, "shape must be a list of sizes") for shape in (3, [-3], [True], [1 << 50])),
        ({"shape": [1, 1, 3]}, "got 3 dimensions"),
        ({"shape": []}, "got 0 dimensions"),
        ({"shape": [0], "data": []}, "sequences[0]: input 'ids': the sequence is empty"),
        ({"shape": [0, 3], "data": []}, "inputs[0]: the tensor is empty"),
        ({"shape": [1025, 1], "data": [1] * 1025}, "the tensor has 1025 sequences, one request may have at most 1024"),
        ({"data": "AAAA"}, "data must be a list of numbers"),
        ({"data": [[1, 2, 3]]}, "nested as [1], but shape says [3]"),
        ({"data": [1, 2, 200]}, "sequences[0]: input 'ids': id 200"),
        ({"data": [1, 2, True]}, "value 2 is a boolean"),
        ({"shape": [2, 3], "data": [[1, 2], [3, 4]]}, "nested as [2, 2], but shape says [2, 3]"),
    ],
)
def test_a_bad_v2_entry_is_refused_by_its_place(change: dict[str, object], told: str) -> None:
    assert told in refusal(row({"inputs": [TENSOR | change]})).message


@pytest.mark.parametrize("end", ["]", "", "x"])
def test_garbage_is_collected_again_after_a_large_body(end: str) -> None:
    """It is not while the body is parsed, which makes no garbage; one that is no JSON changes nothing."""
    body = f"[{', '.join(['1'] * 50_000)}{end}".encode()

    refusal(row(body, "text/plain"))
    assert gc.isenabled()
    gc.disable()
    try:
        refusal(row(body, "text/plain"))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_v2_sizes_of_which_no_tensor_can_be_made_are_refused() -> None:
    """A shape without elements may have sizes whose product no engine can count."""
    bands = make_manifest(inputs=(TensorSpec("bands", "float32", ("batch", 2, 2, "time")),))
    entry = {"name": "bands", "shape": [1 << 39, 1 << 39, 0], "datatype": "FP32", "data": []}

    assert "shape must be a list of sizes" in refusal(row({"inputs": [entry]}), bands).message


def test_v2_needs_every_input_once_for_each_sequence() -> None:
    body = {"inputs": [TENSOR, TENSOR, {"name": "frames", "shape": [3, 2], "datatype": "FP32", "data": [0.5] * 6}]}

    assert "2 of 'ids', 1 of 'frames'" in refusal(row(body), TWO).message
    assert "1 of 'ids', 0 of 'frames'" in refusal(row({"inputs": [TENSOR]}), TWO).message
    assert "each entry must be an object with name" in refusal(row({"inputs": [{"name": "ids"}]})).message
    assert "inputs is empty" in refusal(row({"inputs": []})).message
    assert "one request may have at most 1024" in refusal(row({"inputs": [TENSOR] * 1025})).message


def test_npy_bodies_are_one_sequence_of_the_one_input() -> None:
    content = write_npy(torch.tensor([1, 2, 3]))

    for raw in (row(content, "application/x-npy"), row(bytearray(content), ""), RawRequest({"data": content})):
        assert ids_of(decode(raw, ONE)) == [[1, 2, 3]]
    assert "model has one input" in refusal(row(content, "application/x-npy"), TWO).message
    assert "got 2 dimensions" in refusal(row(write_npy(torch.tensor([[1, 2]])))).message
    pickled = np.array([None], dtype=object).dumps()
    assert refusal(row(pickled, "application/x-npy")).status == 400


@pytest.mark.parametrize("zero", ["q=0", "Q=0.000", " q = 0. ", "v=1;q=0;x=2"])
def test_a_type_of_weight_zero_is_not_accepted(zero: str) -> None:
    """A client names it so to exclude it."""
    assert not decode(row([1], accept=f"application/x-npy;{zero}, application/json"), ONE).npy
    only_npy = f"application/json;{zero}, application/x-npy;q=0.01"
    assert decode(row([1], accept=only_npy), ONE).npy
    assert refusal(row({"instances": [[1], [2]]}, accept=only_npy), ONE).status == 406


@pytest.mark.parametrize("accept", ["application/x-npy", "text/html, Application/X-NPY;q=0.9"])
def test_npy_is_answered_where_it_can_hold_the_answer(accept: str) -> None:
    assert decode(row([1], accept=accept), ONE).npy
    assert decode(row({"instances": [[1]]}, Accept=accept), ONE).npy
    assert decode(row([1], ACCEPT=accept), ONE).npy
    assert refusal(row({"instances": [[1], [2]]}, accept=accept), ONE).status == 406
    assert refusal(row({"ids": [1], "frames": [[0, 0]]}, accept=accept), TWO).status == 406
    assert refusal(row({"inputs": [TENSOR]}, accept=accept)).status == 406
    assert not decode(row({"instances": [[1], [2]]}, accept=accept + ", */*;q=0.1"), ONE).npy


def test_a_sequence_longer_than_every_bucket_is_refused_or_cut_as_the_model_says() -> None:
    error = refusal(row(list(range(9))))
    cut = decode(
        row({"ids": list(range(9)), "frames": [[0, 0]] * 9}), make_manifest((IDS, FRAMES), overflow="truncate")
    )

    assert (error.status, error.kind) == (413, "SequenceTooLong")
    assert "9 timesteps" in error.message
    assert "4, 8" in error.message
    assert [tuple(tensor.shape) for tensor in cut.sequences[0].tensors] == [(8,), (8, 2)]
    assert cut.sequences[0].length == 8


def test_fewer_timesteps_than_the_model_takes_are_refused() -> None:
    manifest = make_manifest(shortest=4)

    assert decode(row([1] * 4), manifest).sequences[0].length == 4
    assert (refusal(row([1] * 3), manifest).status, refusal(row([1] * 9), manifest).status) == (422, 413)


def test_a_model_without_time_takes_vectors() -> None:
    manifest = make_manifest(inputs=(TensorSpec("x", "float32", ("batch", 2)),))

    assert decode(row([0, 1]), manifest).sequences[0].length == 1
    assert "expected 2" in refusal(row([0, 1, 2]), manifest).message


def test_a_timeout_of_the_protocol_is_in_microseconds() -> None:
    """The service counts milliseconds."""
    assert decode(row({"inputs": [TENSOR], "parameters": {"timeout": 2500}})).timeout_ms == 2.5
    assert decode(row({"inputs": [TENSOR]})).timeout_ms is None


@pytest.mark.parametrize(
    ("header", "size"),
    [("12", 12), ("0", 0), ("9" * 15, 10**15 - 1), ("9" * 16, 0), ("", 0), ("-1", 0), ("1e3", 0), ("\u0663", 0)],
)
@pytest.mark.parametrize("name", ["Content-Length", "content-length"])
def test_the_size_of_a_body_is_what_its_header_says(name: str, header: str, size: int) -> None:
    assert RawRequest({}, {name: header}).content_length == size
    assert RawRequest({}, {}).content_length == 0
