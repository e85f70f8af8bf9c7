from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_model import FRAMES, IDS, SUMS, TOTAL, make_manifest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from session_service import ask, make_service, piece

from torchserve_neuron_lstm.bucketing.shapes import DType, TensorSpec
from torchserve_neuron_lstm.handlers.formats import Codec, make_codec
from torchserve_neuron_lstm.handlers.formats.binary_tensors import DATATYPES
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.formats.request import InferenceRequest, ModelIdentity
from torchserve_neuron_lstm.handlers.responses import RawResponse, RequestError
from torchserve_neuron_lstm.handlers.streaming.fields import find_session_fields, read_session_fields
from torchserve_neuron_lstm.hosts.grpc.infer import infer_response, parse, rest_request
from torchserve_neuron_lstm.hosts.grpc.messages import GrpcAnswer, message_class, refused
from torchserve_neuron_lstm.sessions.settings import SessionFields

FIELDS = {
    **dict.fromkeys(("int8", "int16", "int32"), "int_contents"),
    **dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents"),
    **{kind: f"{kind}_contents" for kind in ("bool", "int64", "uint64")},
    "float32": "fp32_contents",
    "float64": "fp64_contents",
}
MOST = 6_553_500
TWO = make_manifest(inputs=(IDS, FRAMES), outputs=(SUMS, TOTAL))


def codec(*inputs: TensorSpec) -> Codec:
    return make_codec(make_manifest(inputs=inputs), ModelIdentity("model", "1.0"))


def message(**fields: Any) -> Any:
    return message_class("ModelInferRequest")(model_name="model", **fields)


def ids(**fields: Any) -> dict[str, Any]:
    return {"name": "ids", "datatype": "INT64", "shape": [2], **fields}


def refusal(call: Callable[[], object]) -> GrpcAnswer:
    with pytest.raises(RequestError) as raised:
        call()
    return refused(raised.value)


@st.composite
def tensors(draw: st.DrawFn) -> np.ndarray:
    """Numbers [T], of a dtype that has typed contents."""
    dtype = np.dtype(draw(st.sampled_from(sorted(FIELDS))))
    finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    most: dict[str, Any] = (
        {"max_value": 2**63 - 1} if dtype == np.uint64 else {}
    )  # no input has this dtype; int64 is the widest
    return draw(arrays.arrays(dtype, st.integers(1, 8), elements=arrays.from_dtype(dtype, **finite, **most)))


@given(tensors(), st.booleans())
def test_the_v2_format_reads_the_same_tensor_from_bytes_and_from_typed_contents(array: np.ndarray, typed: bool) -> None:
    name = str(array.dtype)
    target: DType = name if name in DATATYPES else "int64"  # type: ignore[assignment]  # it is one of them
    datatype = DATATYPES.get(target) if name == target else name.upper()
    entry: dict[str, Any] = {"name": "x", "datatype": datatype, "shape": array.shape}
    raw = []
    if typed:
        entry["contents"] = {FIELDS[name]: array.tolist()}
    else:
        raw.append(array.tobytes())

    request = rest_request(message(inputs=[entry], raw_input_contents=raw), (), MOST)
    decoded = codec(TensorSpec("x", target, ("batch", "time"))).decode(request)

    (read,) = decoded.sequences[0].tensors
    assert str(read.dtype) == f"torch.{target}"
    assert torch.equal(read, torch.from_numpy(array.astype(target)))
    assert decoded.outputs is not None
    assert all(one.binary for one in decoded.outputs)


@pytest.mark.parametrize(("datatype", "dtype"), [("FP16", "float16"), ("BF16", "bfloat16")])
def test_halves_are_sent_as_bytes_alone(datatype: str, dtype: DType) -> None:
    """The protocol has no typed contents of them."""
    spec = TensorSpec("x", dtype, ("batch", "time"))
    entry = {"name": "x", "datatype": datatype, "shape": [2]}

    decoded = codec(spec).decode(rest_request(message(inputs=[entry], raw_input_contents=[b"\0" * 4]), (), MOST))
    answer = refusal(lambda: rest_request(message(inputs=[{**entry, "contents": {"fp32_contents": [1, 2]}}]), (), MOST))

    assert decoded.sequences[0].tensors[0].tolist() == [0, 0]
    assert "use raw_input_contents" in answer.details


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"inputs": [ids(), ids()], "raw_input_contents": [b"1" * 16]}, "expected 2 entries, one for each of inputs"),
        ({"inputs": [], "raw_input_contents": [b"1"]}, "expected 0 entries"),
        ({"inputs": [ids(contents={"int64_contents": [1]})], "raw_input_contents": [b"1" * 16]}, "got both"),
        ({"inputs": [ids(contents={"int_contents": [1, 2]})]}, "in int64_contents, got int_contents"),
        ({"inputs": [ids(datatype="BYTES", contents={"bytes_contents": [b"1"]})]}, "'BYTES' has no typed contents"),
        ({"inputs": [ids(datatype="INT8", contents={"int_contents": [300]})]}, "out of the range of INT8"),
        ({"inputs": [ids(contents={"int64_contents": [1] * 5 * 10**5})] * 2}, "inputs[1]: 500000 numbers of INT64"),
        ({"inputs": [ids(shape=[1] * 33)], "raw_input_contents": [b"1"]}, "expected at most 32 sizes, got 33"),
        ({"inputs": [ids(parameters={"shared_memory_region": {"string_param": "a"}})]}, "shared_memory_region"),
    ],
)
def test_contents_that_do_not_fit_are_refused(fields: dict[str, Any], told: str) -> None:
    """Counts in a message are never trusted."""
    answer = refusal(lambda: rest_request(message(**fields), (), MOST))

    assert answer.code == "INVALID_ARGUMENT"
    assert told in answer.details


def test_typed_contents_that_are_too_few_are_refused_as_over_rest() -> None:
    request = rest_request(message(inputs=[ids(contents={"int64_contents": [1]})]), (), MOST)

    with pytest.raises(Exception, match=r"shape \[2\] of INT64 needs 16 bytes, binary_data_size is 8"):
        codec(IDS).decode(request)


def test_parameters_ids_and_outputs_mean_what_they_mean_over_rest() -> None:
    asked = message(
        id="17",
        inputs=[ids(), {"name": "frames", "datatype": "FP32", "shape": [2, 2]}],
        raw_input_contents=[np.array([1, 2]).tobytes(), bytes(16)],
        outputs=[{"name": "state.0", "parameters": {"binary_data": {"bool_param": False}}}],
        parameters={
            "timeout": {"int64_param": 2500},
            "priority": {"uint64_param": 1},
            "binary_data_output": {"bool_param": False},
            "unset": {},
        },
    )

    decoded = make_codec(TWO, ModelIdentity("model", "1.0")).decode(rest_request(asked, (), MOST))

    assert (decoded.id, decoded.timeout_ms) == ("17", 2.5)
    assert decoded.outputs == ((1, True),)


@pytest.mark.parametrize("sequence", [{"int64_param": 7}, {"string_param": "7"}, {"uint64_param": 7}])
def test_sessions_are_named_by_parameters_or_by_metadata(sequence: dict[str, object]) -> None:
    flags = {"sequence_start": {"bool_param": True}, "sequence_end": {"bool_param": False}}
    asked = message(inputs=[ids()], raw_input_contents=[bytes(16)], parameters={"sequence_id": sequence, **flags})
    metadata = [("ts-request-sequence-step", "4"), ("inference-header-content-length", "1"), ("x-bin", b"\0")]

    found, rest = find_session_fields(rest_request(asked, metadata, MOST), SessionFields(), codec(IDS).is_json)
    fields = read_session_fields(found, SessionFields())

    assert (fields.id, fields.start, fields.end, fields.step) == ("7", True, False, 4)
    assert isinstance(rest, RawRequest)


def response(**fields: Any) -> RawResponse:
    """A response of the service to a request of three ids, with its outputs as bytes."""
    formats = make_codec(TWO, ModelIdentity("model", "1.0"))
    entries = [ids(), {"name": "frames", "datatype": "FP32", "shape": [2, 2]}]
    contents = [np.array([1, 2]).tobytes(), bytes(16)]
    request: InferenceRequest = formats.decode(
        rest_request(message(id="é", inputs=entries, raw_input_contents=contents, **fields), (), MOST)
    )
    outputs = (torch.tensor([[0.1, 2.0], [float("nan"), 4.0]]), torch.tensor([5.0, 6.0]))
    return RawResponse(200, *formats.encode(request, [outputs], {"step": 2, "token": "abc", "done": True}))


def test_a_response_has_the_bytes_of_its_outputs_and_the_fields_of_its_session() -> None:
    cut = response()._replace(headers={"X-Request-Truncated": "true"})
    found = message_class("ModelInferResponse").FromString(infer_response(cut))

    assert (found.model_name, found.model_version, found.id) == ("model", "1.0", "é")
    assert [(one.name, one.datatype, [*one.shape]) for one in found.outputs] == [
        ("sums", "FP32", [2, 2]),
        ("state.0", "FP32", [2]),
    ]
    sums, total = [np.frombuffer(content, np.float32).tolist() for content in found.raw_output_contents]
    assert str(sums) == str([np.float32(0.1).item(), 2.0, float("nan"), 4.0])
    assert total == [5.0, 6.0]
    parameters = {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in found.parameters.items()}
    assert parameters == {"step": 2, "token": "abc", "done": True, "truncated": True}


def test_an_error_response_is_a_refusal_with_its_code_type_and_waiting_time() -> None:
    body = b'{"code": 503, "type": "StoreUnavailable", "message": "later"}'
    answer = refusal(lambda: infer_response(RawResponse(503, body, headers={"Retry-After": "2"})))

    assert answer == (b"", "UNAVAILABLE", "later", (("error-type", "StoreUnavailable"), ("retry-after", "2")))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(content: bytes) -> None:
    try:
        request = rest_request(parse("ModelInferRequest", content), (), MOST)
    except RequestError as error:
        assert refused(error).code == "INVALID_ARGUMENT"  # noqa: PT017 - it may also not be raised
        return
    assert isinstance(request, RawRequest)


def test_a_session_is_ended_alone() -> None:
    service = make_service()
    ask(service, piece([1, 2], id="a", start="true"))
    end = message(id="7")
    end.parameters["sequence_id"].string_param = "a"
    end.parameters["sequence_end"].bool_param = True

    (response,) = service.handle([rest_request(end, (), MOST)])
    found = message_class("ModelInferResponse").FromString(infer_response(response))

    assert (found.id, [*found.outputs]) == ("7", [])
    assert found.parameters["ts_request_sequence_step"].int64_param == 2
    assert ask(service, piece([1], id="a"))[0][1]["type"] == "SessionEnded"
