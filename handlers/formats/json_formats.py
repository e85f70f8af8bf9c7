"""A request's body, in any of the formats that need no code of the user's, to the sequences to run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch

from ...config.manifest import Manifest
from ..responses import JSON, NPY, RequestError, abbreviate, invalid, malformed
from .json_text import fast_json, to_json
from .labels import Labels
from .npy import MAGIC, read_npy, write_npy
from .request import (
    Body,
    Form,
    InferenceRequest,
    TorchServeRequest,
    check_sequence_count,
    read_sequence,
    read_sequences,
)
from .v2 import ModelIdentity, is_v2, read_v2, write_v2

_BINARY = (bytes, bytearray)


def decode(raw: TorchServeRequest, manifest: Manifest) -> InferenceRequest:
    """The request in a row: a JSON array or .npy (one sequence of the one input), an object by input name, V1 or V2.

    Raises:
        RequestError: why this request gets no answer.
    """
    body = raw.body()
    request = _decode_npy(body, manifest) if is_npy(body) else _decode_text(body, manifest)
    return _with_answer_type(request, raw, manifest)


def is_npy(body: Body) -> bool:
    """Whether the body is a .npy file: it says so, or nothing is said (gRPC) and it begins like one."""
    return isinstance(body.value, _BINARY) and (body.content_type == NPY or body.value.startswith(MAGIC))


def parse_json(body: Body) -> object:
    """The JSON value of a body, which TorchServe may have parsed already.

    Raises:
        RequestError: 400, it is not JSON in UTF-8, or nested without end.
    """
    text = body.value
    if not isinstance(text, (*_BINARY, str)) or (isinstance(text, str) and text and body.content_type == JSON):
        return text  # parsed by TorchServe, a JSON string too
    if not text:
        raise malformed("the body is empty")
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise malformed(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError:
        raise malformed("the body is not text in UTF-8") from None
    except RecursionError:
        raise malformed("the body is not JSON that can be read: its lists are nested too deep") from None
    except ValueError:  # a number of more digits than Python converts
        raise malformed("the body is not JSON that can be read: a number has too many digits") from None


def parse_json_fast(body: Body) -> object:
    """The same, by the fastest reader that can.

    Raises:
        RequestError: as `parse_json`.
    """
    fast = fast_json()
    if fast is not None and isinstance(body.value, _BINARY):
        try:
            return fast.loads(body.value)
        except ValueError:
            pass  # the standard library has the last word on what is refused
    return parse_json(body)


def _decode_text(body: Body, manifest: Manifest) -> InferenceRequest:
    request = _decode_fast(body, manifest)
    return _decode_json(parse_json(body), manifest) if request is None else request


def _decode_fast(body: Body, manifest: Manifest) -> InferenceRequest | None:
    """The request as orjson reads it, None where the standard library is to have the last word: on all that is refused.

    orjson knows neither NaN nor half a character, and makes floats of integers beyond 64 bits, which are refused but
    for an input of floats, where they are the same floats. So both lead to the same request, or to the same refusal.
    (Only lists a thousand deep, in a part of the body that nobody reads, are too deep for one of them alone.)
    """
    fast = fast_json()
    if fast is None or not isinstance(body.value, _BINARY):
        return None
    try:
        return _decode_json(fast.loads(body.value), manifest)
    except (RequestError, ValueError):
        return None


def _decode_npy(body: Body, manifest: Manifest) -> InferenceRequest:
    assert isinstance(body.value, _BINARY)
    tensor = read_npy(body.value)
    return InferenceRequest((read_sequence({_only_input(manifest, "a .npy body"): tensor}, manifest),), Form.PLAIN)


def _decode_json(value: object, manifest: Manifest) -> InferenceRequest:
    if isinstance(value, list) or not isinstance(value, Mapping):
        return InferenceRequest((read_sequence({_only_input(manifest, "a JSON array"): value}, manifest),), Form.PLAIN)
    if is_v2(value, manifest.inputs):
        return read_v2(value, manifest)
    if "instances" in value and all(spec.name != "instances" for spec in manifest.inputs):
        return _decode_v1(value, manifest)
    return InferenceRequest((read_sequence(value, manifest),), Form.PLAIN)


def _decode_v1(body: Mapping[str, object], manifest: Manifest) -> InferenceRequest:
    instances = body["instances"]
    if not isinstance(instances, list):
        raise malformed(f"instances must be a list with one entry for each sequence, not {abbreviate(instances)}")
    check_sequence_count(len(instances), "instances")
    sequences = [_by_name(instance, manifest, "an instance without names") for instance in instances]
    return InferenceRequest(read_sequences(sequences, manifest, "instances"), Form.V1)


def _by_name(value: object, manifest: Manifest, what: str) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {_only_input(manifest, what): value}


def _only_input(manifest: Manifest, what: str) -> str:
    if len(manifest.inputs) == 1:
        return manifest.inputs[0].name
    names = ", ".join(repr(spec.name) for spec in manifest.inputs)
    raise invalid(f"{what} is taken only where the model has one input; send an object with {names}")


def _with_answer_type(request: InferenceRequest, raw: TorchServeRequest, manifest: Manifest) -> InferenceRequest:
    """The request with `npy` as its Accept header wants it; refused before anything is computed."""
    if not raw.accepts_npy:
        return request
    if request.form is not Form.V2 and len(request.items) == 1 and len(manifest.outputs) == 1:
        return request._replace(npy=True)
    if raw.accepts_json:
        return request
    raise RequestError(
        406,
        "NotAcceptable",
        f"{NPY} holds one array: it answers one sequence of a model with one output. Accept application/json instead",
    )


Outputs = tuple[torch.Tensor, ...]


def encode(
    request: InferenceRequest,
    answers: Sequence[Outputs],
    manifest: Manifest,
    identity: ModelIdentity,
    labels: Labels | None,
    session: Mapping[str, object] | None = None,
) -> tuple[bytes, str]:
    """The body of the response, and its content type. `answers` has one entry for each item of the request.

    `session` is what the answer to a piece of a session says of the session; outputs stand beside it by their names.

    Raises:
        RequestError: 500, the format cannot say the answer.
    """
    if request.npy:
        return write_npy(answers[0][0]), NPY
    if request.form is Form.V2:
        body = write_v2(request, answers, manifest.outputs, identity)
        return to_json(body if session is None else {**body, "parameters": session}), JSON
    values = [_value(answer, manifest, labels) for answer in answers]
    if request.form is Form.V1:
        return to_json({**(session or {}), "predictions": values}), JSON
    if session is None:
        return to_json(values[0]), JSON
    outputs = values[0] if len(manifest.outputs) > 1 else {manifest.outputs[0].name: values[0]}
    assert isinstance(outputs, Mapping)
    return to_json({**session, **outputs}), JSON


def _value(answer: Outputs, manifest: Manifest, labels: Labels | None) -> object:
    """One output as it is, several by name."""
    if labels is not None:
        return labels.most_likely(answer[0])
    if len(answer) == 1:
        return answer[0]
    return dict(zip((spec.name for spec in manifest.outputs), answer, strict=True))
