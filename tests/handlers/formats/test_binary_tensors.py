import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fake_model import FRAMES, IDS, SUMS, TOTAL, make_manifest
from hypothesis import given
from hypothesis import strategies as st
from mixed_requests import npy

from torchserve_neuron_lstm.bucketing.shapes import DType, TensorSpec
from torchserve_neuron_lstm.config.manifest import Manifest
from torchserve_neuron_lstm.handlers.formats import Codec, make_codec
from torchserve_neuron_lstm.handlers.formats.binary_tensors import DATATYPES, from_bytes, to_bytes
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import InferenceRequest, ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RawResponse, RequestError, http_headers

ONE = make_manifest()
TWO = make_manifest(inputs=(IDS, FRAMES), outputs=(SUMS, TOTAL))
IDS_BYTES = np.array([5, 17, 99], "<i8").tobytes()
ENTRY: dict[str, Any] = {"name": "ids", "shape": [3], "datatype": "INT64", "parameters": {"binary_data_size": 24}}


def codec(manifest: Manifest = ONE) -> Codec:
    return make_codec(manifest, ModelIdentity("model", "1.0"))


def body(value: object, *contents: bytes, header: object = None) -> RawRequest:
    """A request as Triton's client sends it: JSON and bytes, no content type."""
    text = json.dumps(value).encode()
    told = str(len(text) if header is None else header)
    return RawRequest({"body": text + b"".join(contents)}, {"Inference-Header-Content-Length": told})


def refusal(request: RawRequest, manifest: Manifest = ONE) -> RequestError:
    with pytest.raises(RequestError) as refused:
        codec(manifest).decode(request)
    return refused.value


def ids_of(request: InferenceRequest) -> list[list[int]]:
    return [item.tensors[0].tolist() for item in request.sequences]


def test_the_bytes_after_the_json_are_the_data_of_their_entries_in_order() -> None:
    as_json = {"name": "ids", "shape": [1], "datatype": "INT64", "data": [7]}
    short = {**ENTRY, "shape": [1], "parameters": {"binary_data_size": 8}}
    request = codec().decode(body({"inputs": [ENTRY, as_json, short]}, IDS_BYTES, IDS_BYTES[8:16]))

    assert ids_of(request) == [[5, 17, 99], [7], [17]]
    assert request.format.name == "V2"


def test_the_header_of_the_json_s_length_has_any_case() -> None:
    request = body({"inputs": [ENTRY]}, IDS_BYTES)
    (told,) = request.headers.values()
    found = codec().decode(request._replace(headers={"INFERENCE-HEADER-CONTENT-LENGTH": told}))

    assert ids_of(found) == [[5, 17, 99]]


def test_a_missing_value_arrives_as_nan_in_every_format() -> None:
    values, taking = np.array([[1, np.nan]], "<f4"), make_manifest(inputs=(replace(FRAMES, nan=True),))
    entry = {"name": "frames", "shape": [1, 2], "datatype": "FP32"}
    written = ({"inputs": [{**entry, "data": [1, None]}]}, [[1, None]], {"instances": [[[1, np.nan]]]})
    in_bytes = body({"inputs": [{**entry, "parameters": {"binary_data_size": 8}}]}, values.tobytes())
    file = RawRequest({"body": npy(values)}, {"Content-Type": "application/x-npy"})
    for request in (in_bytes, file, *(RawRequest({"body": value}) for value in written)):
        (sequence,) = codec(taking).decode(request).sequences
        torch.testing.assert_close(sequence.tensors[0], torch.from_numpy(values), equal_nan=True)
        assert "`missing: nan`" in refusal(request, make_manifest(inputs=(FRAMES,))).message


def test_a_batch_of_bytes_is_one_tensor() -> None:
    request = codec().decode(body({"inputs": [{**ENTRY, "shape": [3, 1]}]}, IDS_BYTES))

    assert (ids_of(request), request.batched) == ([[5], [17], [99]], True)


@pytest.mark.parametrize("dtype", [*DATATYPES, "uint16", "uint32", "uint64"])
def test_every_datatype_that_an_input_can_have_is_read(dtype: str) -> None:
    if dtype == "bfloat16":
        content, datatype = to_bytes(torch.tensor([1.0, 0.0], dtype=torch.bfloat16)), "BF16"
    else:
        content = np.array([1, 0], dtype).tobytes()
        datatype = DATATYPES.get(dtype, dtype.upper())  # type: ignore[call-overload]  # it may be none of them
    target: DType = dtype if dtype in DATATYPES else "int64"  # type: ignore[assignment]  # it is one of them
    manifest = make_manifest(inputs=(TensorSpec("x", target, ("batch", "time")),))
    entry = {"name": "x", "shape": [2], "datatype": datatype, "parameters": {"binary_data_size": len(content)}}

    tensor = codec(manifest).decode(body({"inputs": [entry]}, content)).sequences[0].tensors[0]

    assert tensor.tolist() == [1, 0]
    assert str(tensor.dtype) == f"torch.{target}"


@pytest.mark.parametrize(
    ("target", "kind", "values", "expected"),
    [
        *(
            ("int64", kind, [value], [value])
            for kind, value in (("u2", 65535), ("u4", 2**32 - 1), ("i1", -1), ("u8", 2**63 - 1))
        ),
        *(("float64", "u8", [value], [float(value)]) for value in (2**63, 2**63 + 1025, 2**64 - 1, 5)),
        ("float32", "u8", [1, 3, 2**63], [1.0, 3.0, 2.0**63]),  # a large value changes none beside it
        ("float32", "u8", [2**63 + 2**39 + 1], [2.0**63 + 2**40]),  # to float64 first, it would be halfway
        ("float32", "i8", [2**60 + 2**36 + 1], [2.0**60 + 2**37]),
    ],
)
def test_integers_are_widened_or_rounded_once(
    target: DType, kind: str, values: list[int], expected: list[float]
) -> None:
    manifest = make_manifest(inputs=(TensorSpec("x", target, ("batch", "time")),))
    content = np.array(values, f"<{kind}").tobytes()
    datatype = f"{'UINT' if kind[0] == 'u' else 'INT'}{8 * int(kind[1])}"
    entry = {
        "name": "x",
        "shape": [len(values)],
        "datatype": datatype,
        "parameters": {"binary_data_size": len(content)},
    }

    for request in (body({"inputs": [entry]}, content), RawRequest({"body": json.dumps(values)})):
        assert ids_of(codec(manifest).decode(request)) == [expected]


@pytest.mark.parametrize(
    ("change", "contents", "told"),
    [
        ({"parameters": {"binary_data_size": 25}}, [IDS_BYTES], "only 24 bytes are left after the JSON"),
        ({"parameters": {"binary_data_size": 16}}, [IDS_BYTES[:16]], "shape [3] of INT64 needs 24 bytes"),
        ({"parameters": {"binary_data_size": 16}}, [IDS_BYTES], "8 bytes at the end of the body belong to no input"),
        ({"parameters": {"binary_data_size": -1}}, [], "binary_data_size must be a number of bytes, not -1"),
        ({"parameters": {"binary_data_size": True}}, [], "must be a number of bytes"),
        ({"parameters": {"binary_data_size": "24"}}, [IDS_BYTES], "must be a number of bytes"),
        ({"data": [1, 2, 3]}, [IDS_BYTES], "the entry has both data and binary_data_size"),
        ({"parameters": {}}, [IDS_BYTES], "24 bytes at the end of the body belong to no input"),
        ({"datatype": "BYTES"}, [IDS_BYTES], "datatype 'BYTES' is not accepted: send INT64"),
        ({"datatype": "FP64"}, [IDS_BYTES], "datatype 'FP64' is not accepted: send INT64"),
        ({"shape": [1 << 39]}, [IDS_BYTES], "needs 4398046511104 bytes, binary_data_size is 24"),
        ({"name": "x"}, [IDS_BYTES], "the model has no input 'x'"),
        ({"datatype": "UINT64"}, [b"\xff" * 24], "out of the range of int64"),
        ({}, [np.array([1, 2, 200], "<i8").tobytes()], "sequences[0]: input 'ids': id 200"),
    ],
)
def test_bytes_that_do_not_fit_are_refused_with_the_reason(
    change: dict[str, object], contents: list[bytes], told: str
) -> None:
    error = refusal(body({"inputs": [ENTRY | change]}, *contents))

    assert error.status == 400
    assert told in error.message
    assert json.loads(codec().encode_error(error, body({})))["error"] == error.message


def test_an_entry_has_only_the_bytes_that_those_before_it_leave() -> None:
    frames = {"name": "frames", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    error = refusal(body({"inputs": [ENTRY, frames]}, IDS_BYTES, bytes(8)), TWO)

    assert error.message == "inputs[1]: binary_data_size is 16, but only 8 bytes are left after the JSON"


@pytest.mark.parametrize("header", ["1000", "-1", "x", "1" * 40, "２"])
def test_a_length_of_the_json_that_cannot_be_is_refused(header: str) -> None:
    error = refusal(body({"inputs": [ENTRY]}, IDS_BYTES, header=header))

    assert (error.status, error.kind) == (400, "MalformedBody")
    assert json.loads(codec().encode_error(error, body({})))["error"] == error.message


def test_a_length_that_cuts_the_json_is_refused() -> None:
    assert "not JSON" in refusal(body({"inputs": [ENTRY]}, IDS_BYTES, header=10)).message


def test_very_many_entries_are_refused_before_they_are_looked_at() -> None:
    """As many sequences as a model allows are fewer."""
    error = refusal(body({"inputs": [{}] * 65_537}, b""))

    assert (error.status, error.kind) == (413, "TooManySequences")


@pytest.mark.parametrize("value", [[1, 2], {"instances": [[1]]}, {"inputs": 3}, 7])
def test_only_v2_has_bytes_after_its_json(value: object) -> None:
    assert "for a body in V2" in refusal(body(value, b"")).message


def answer(value: Mapping[str, Any], outputs: list[tuple[torch.Tensor, ...]], manifest: Manifest = ONE) -> Any:
    formats = codec(manifest)
    content, content_type = formats.encode(formats.decode(body(value, b"")), outputs)
    _, headers = http_headers(RawResponse(200, content, content_type))
    end = int(headers["Inference-Header-Content-Length"])
    return json.loads(content[:end]), content[end:]


def test_outputs_are_bytes_where_the_request_wants_them() -> None:
    value = {"inputs": [as_json([1]), as_json([1, 2])], "parameters": {"binary_data_output": True}}
    read, content = answer(value, [(torch.tensor([float("nan"), 1]),), (torch.tensor([2.0, 3]),)])

    assert [entry["parameters"] for entry in read["outputs"]] == [{"binary_data_size": 8}] * 2
    assert [entry.get("data") for entry in read["outputs"]] == [None, None]
    np.testing.assert_array_equal(np.frombuffer(content, "<f4"), [np.nan, 1, 2, 3])


def as_json(ids: list[int]) -> dict[str, object]:
    return {"name": "ids", "shape": [len(ids)], "datatype": "INT64", "data": ids}


def of_two(wanted: object) -> dict[str, Any]:
    frames = {"name": "frames", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 1.0]}
    return {"inputs": [as_json([1]), frames], "outputs": wanted}


def test_outputs_are_chosen_by_name_in_the_order_of_the_request() -> None:
    names = [spec.name for spec in TWO.outputs]
    outputs = [tuple(torch.full((2,), float(index)) for index in range(2))]
    wanted = [{"name": names[1]}, {"name": names[0], "parameters": {"binary_data": True}}]
    read, content = answer(of_two(wanted), outputs, TWO)

    assert [entry["name"] for entry in read["outputs"]] == [names[1], names[0]]
    assert read["outputs"][0]["data"] == [1.0, 1.0]
    assert np.frombuffer(content, "<f4").tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ([{"name": "x"}], "outputs[0]: the model has no output 'x': its outputs are "),
        ([3], "outputs[0]: the model has no output null"),
        ({}, "outputs must be a list"),
        ([{"name": "sums"}] * 3, "outputs must be a list"),
        ([{"name": "sums"}] * 2, "outputs names one output twice"),
        ([{"name": "sums", "parameters": {"binary_data": 1}}], "binary_data must be true or false, not 1"),
        ([{"name": "sums", "parameters": {"classification": 3}}], "classification is not served"),
        ([{"name": "sums", "parameters": {"shared_memory_region": "a"}}], "shared_memory_region is not served"),
    ],
)
def test_outputs_that_cannot_be_given_are_refused(wanted: object, told: str) -> None:
    assert told in refusal(body(of_two(wanted), b""), TWO).message


INTEGERS = {
    f"{sign}INT{8 * width}": f"<{kind}{width}" for sign, kind in (("", "i"), ("U", "u")) for width in (1, 2, 4, 8)
}
FLOATS = {"FP16": "<f2", "BF16": "<f4", "FP32": "<f4", "FP64": "<f8"}
PAIRS: list[tuple[DType, str]] = [
    *((target, kind) for target in ("float32", "float64", "float16", "bfloat16") for kind in (*INTEGERS, *FLOATS)),
    *((target, kind) for target in ("int64", "int32", "int16", "int8", "uint8") for kind in INTEGERS),
    ("bool", "BOOL"),
    *[(target, kind) for target in ("float32", "float64") for kind in ("INT64", "UINT64")] * 20,  # rounded most often
]
BESIDE_TIES = st.builds(
    lambda sign, high, bits, rest: sign * (2**high + (2**high >> bits) + rest),
    *map(st.sampled_from, ([1, -1], [14, 30, 60, 63], [8, 11, 24, 53], [-1, 0, 1])),
)
"""Integers at and beside those that are halfway between two floats."""


def numbers(datatype: str) -> st.SearchStrategy[Any]:
    """Numbers that a datatype can hold."""
    if datatype == "BOOL":
        return st.booleans()
    if datatype in FLOATS:
        # Those of bfloat16 are numbers of float32 that end in zeros.
        bits = st.integers(-(2**15), 2**15 - 1).map(lambda top: float(np.array(top * 2**16, "<i4").view("<f4")))
        width = 8 * int(FLOATS[datatype][2])
        return bits.filter(np.isfinite) if datatype == "BF16" else st.floats(width=width, allow_nan=False)  # type: ignore[arg-type]  # 16, 32 or 64
    limits = np.iinfo(INTEGERS[datatype])
    least, most = int(limits.min), int(limits.max)
    return st.integers(least, most) | st.integers(0, 9) | BESIDE_TIES.map(lambda number: min(max(number, least), most))


def rounded_once(array: np.ndarray, target: DType) -> bytes | None:
    """The tensor of an input that takes these numbers, as bytes; None if it must refuse one of them."""
    dtype: torch.dtype = getattr(torch, target)
    if not dtype.is_floating_point:
        limits = np.iinfo(target) if target != "bool" else None
        fits = limits is None or all(limits.min <= number <= limits.max for number in array.tolist())
        return to_bytes(torch.from_numpy(array.astype(target))) if fits else None
    direct = array if array.dtype.kind == "f" or target == "float64" else array.astype("<f4")
    tensor = torch.from_numpy(direct.astype("<f8") if target == "float64" else direct).to(dtype)
    return to_bytes(tensor) if bool(tensor.isfinite().all()) else None


def decoded(formats: Codec, request: RawRequest) -> bytes | None:
    """The tensor of a request's one sequence, as bytes; None if it is refused."""
    try:
        (sequence,) = formats.decode(request).sequences
    except RequestError as refused:
        return None if refused.status == 400 else b"another status"
    return to_bytes(sequence.tensors[0])


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@given(st.data())
def test_the_same_numbers_are_the_same_tensor_in_every_format(data: st.DataObject) -> None:
    target, datatype = data.draw(st.sampled_from(PAIRS))
    array = np.array(
        data.draw(st.lists(numbers(datatype), min_size=1, max_size=5)), {**INTEGERS, **FLOATS, "BOOL": "?"}[datatype]
    )
    content = to_bytes(torch.from_numpy(array).to(torch.bfloat16)) if datatype == "BF16" else array.tobytes()
    entry = {"name": "x", "shape": [len(array)], "datatype": datatype}
    requests = [
        body({"inputs": [{**entry, "parameters": {"binary_data_size": len(content)}}]}, content),
        RawRequest({"body": npy(array)}, {"Content-Type": "application/x-npy"}),
    ]
    if np.isfinite(array).all():
        values = array.tolist()
        requests += [
            RawRequest({"body": json.dumps(value)}) for value in (values, {"inputs": [{**entry, "data": values}]})
        ]
    formats = codec(make_manifest(inputs=(TensorSpec("x", target, ("batch", "time")),)))
    expected = rounded_once(array, target)

    assert [decoded(formats, request) for request in requests] == [expected] * len(requests)


def test_the_sequences_of_a_request_are_the_same_in_bytes_and_in_json() -> None:
    arrays = [np.arange(2.0 * rows, dtype="<f4").reshape(rows, 2) for rows in (1, 3)]
    entries = [{"name": "x", "shape": list(array.shape), "datatype": "FP32"} for array in arrays]
    pairs = list(zip(entries, arrays, strict=True))
    raw = [{**entry, "parameters": {"binary_data_size": array.nbytes}} for entry, array in pairs]
    written = [{**entry, "data": array.reshape(-1).tolist()} for entry, array in pairs]
    formats = codec(make_manifest(inputs=(TensorSpec("x", "float32", ("batch", "time", 2)),)))

    by_bytes = formats.decode(body({"inputs": raw}, *[array.tobytes() for array in arrays]))
    by_json = formats.decode(body({"inputs": written}, b""))

    for left, right, array in zip(by_bytes.sequences, by_json.sequences, arrays, strict=True):
        assert left.length == right.length == len(array)
        assert left.tensors[0].tolist() == right.tensors[0].tolist() == array.tolist()


@given(st.lists(st.floats(width=32), max_size=6))
def test_bytes_of_a_tensor_are_read_back(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers)

    assert to_bytes(from_bytes(bytearray(to_bytes(tensor)), torch.float32)) == to_bytes(tensor)
