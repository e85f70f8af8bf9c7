"""Requests of every format, with and without sessions, through the service that answers them.

The property: every request is answered, never with a 500; the answer is valid and bounded; and a good request of the
same batch gets the answer that it gets alone.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, NamedTuple

import torch
from fake_context import FakeContext

from torchserve_neuron_lstm.handlers.formats.npy import read_npy, write_npy
from torchserve_neuron_lstm.handlers.formats.raw_request import RawRequest
from torchserve_neuron_lstm.handlers.responses import JSON, NPY, STATUSES
from torchserve_neuron_lstm.handlers.service import Service
from torchserve_neuron_lstm.handlers.torchserve import handle
from torchserve_neuron_lstm.sessions.token import TokenState, sign_token, token_model

from ..case import ARRIVALS, DECODED, Case, read_case, write_case
from ..mutation.binary_tensors import LENGTH, binary_case, mutate_binary, of_parts, parts
from ..mutation.json_text import mutate_json
from ..mutation.npy import mutate_npy
from ..properties import PropertyViolation, require
from ..served.kinds import IDENTITY, KEY, KINDS, MOST_RESPONSE_BYTES, NOW, OPEN_SESSION, ServiceKind, kind_of
from ..served.manifests import FIELDS, STATE_ID
from ..target import OctetMutation, Target

NAMES = tuple(KINDS)
LARGEST_REFUSAL = 8192
"""Bytes of a refusal: it repeats a little of the request, and an id."""
HEADERS = {
    "accept": (NPY, JSON, f"{NPY}, {JSON};q=0.5", "*/*", ""),
    "content-type": (NPY, JSON, "multipart/form-data; boundary=x", "application/octet-stream", "text/plain"),
    "content-length": ("12", "99999999999", "-1", "1e3"),
    "Inference-Header-Content-Length": ("100", "-1", "0"),
    "describe": ("True",),
    "explain": ("True",),
    "x-request-timeout-ms": ("50", "0", "1e3", "9" * 30),
    "x-request-deadline-ms": (str(int(NOW * 1000) + 50), "1", "x"),
    "x-client": ("a", "b", "\u00e9"),
    "X-Start": ("true",),
    **dict.fromkeys((FIELDS.id, FIELDS.start, FIELDS.end), ("true", "1", "0", "2", "x", OPEN_SESSION, "")),
    FIELDS.step: ("0", "2", "9" * 19, "-1", "\u0663"),
}
WORDS = tuple(
    f"""
    ids frames inputs instances grid mask half kind levels bands name shape datatype data parameters timeout id
    session start end step token sequence_id sequence_start sequence_end sequence_step model_name binary_data_size
    outputs binary_data binary_data_output classification {OPEN_SESSION} true 1
    INT64 INT8 FP32 FP16 BF16 BOOL UINT8 UINT64 BYTES
    """.split()
)


def seeds() -> Mapping[str, bytes]:
    """Return requests of every service and format, and refused ones that chance rarely makes."""
    return {name: write_case(case) for name, case in (accepted_cases() | refused_cases()).items()}


def refused_cases() -> dict[str, Case]:
    """Return requests that are refused for a reason which needs several parts to be as they are, by name."""
    one, other = _v2("ids", "INT64", [1]), _v2("frames", "FP32", [[0.5, 1]])
    refused: dict[str, tuple[str, Any]] = {
        "too_many_timesteps": ("ids", {"instances": [[1] * 8] * 16}),
        "too_many_written": ("named_inputs", [[1, 2]] * 101),
        "too_short": ("exact_lengths", {"instances": [1]}),
        "lengths_differ": ("two_inputs", {"ids": [1], "frames": [[0.5, 1], [2, 3]]}),
        "v2_counts_differ": ("two_inputs", {"inputs": [one, one, other]}),
        "v2_long_id": ("ids", {"id": "x" * 513, "inputs": [one]}),
        "v2_no_time": ("dtypes", {"inputs": [_v2("kind", "UINT8", [1, 2, 3])]}),
        "v2_empty": ("rank_four", {"inputs": [{**_v2("grid", "FP64", []), "shape": [0, 2, 2]}]}),
        "out_of_range": ("static", [1, 2, 51]),
        "not_finite": ("rank_four", [[[1e308, 1e308], [1e400, 1]]]),
        "too_much_work": ("costly", {"instances": [[1] * 8] * 12}),
        "v2_unknown_output": ("ids", {"inputs": [one], "outputs": [{"name": "x"}]}),
        "v2_many_outputs": ("ids", {"inputs": [one], "outputs": [{"name": "means"}] * 2}),
        "v2_output_twice": ("two_inputs", {"inputs": [one, other], "outputs": [{"name": "means"}] * 2}),
        "v2_classes": ("ids", {"inputs": [one], "outputs": [{"name": "means", "parameters": {"classification": 1}}]}),
        "v2_no_flag": ("ids", {"inputs": [one], "parameters": {"binary_data_output": 1}}),
        "session_of_two": ("sessions", {"instances": [[1], [2]], "session": "new", "start": True}),
    }
    cases = {name: Case(kind, json.dumps(body).encode()) for name, (kind, body) in refused.items()}
    form = _of_type("application/x-www-form-urlencoded")
    binary = {
        "binary_wide_unsigned": ("two_inputs", "UINT64", 8, b"\xff" * 8),
        "binary_wrong_size": ("ids", "INT64", 4, bytes(4)),
        "binary_too_few": ("ids", "INT64", 8, bytes(4)),
        "binary_too_many": ("ids", "INT64", 8, bytes(12)),
        "binary_no_size": ("ids", "INT64", -1, b""),
    }
    for name, (kind, datatype, size, content) in binary.items():
        entry = {"name": "ids", "shape": [1], "datatype": datatype, "parameters": {"binary_data_size": size}}
        cases[name] = of_parts(Case(kind, b""), json.dumps({"inputs": [entry]}).encode(), content)
    both = {**one, "parameters": {"binary_data_size": 0}}
    cases["binary_and_data"] = of_parts(Case("ids", b""), json.dumps({"inputs": [both]}).encode(), b"")
    cases["binary_no_v2"] = of_parts(Case("ids", b""), b"[1]", b"")
    return cases | {
        "late": Case("costly", b"[1, 2, 3]", headers=(("x-request-timeout-ms", "5"),)),
        "as_a_form": Case("ids", b"", arrival="form", headers=form),
        "other_field": Case("ids", b"", arrival="form", fields=(("file", "1"),)),
        "wide_unsigned": Case("ids", write_npy(torch.tensor([2**63], dtype=torch.uint64)), headers=_of_type(NPY)),
    }


def accepted_cases() -> dict[str, Case]:
    """Return requests that are answered with 200, by name."""
    ids = [1, 2, 3]
    bodies: dict[str, tuple[str, Any]] = {
        "plain_array": ("ids", ids),
        "plain_object": ("two_inputs", {"ids": [1, 2], "frames": [[0.5, 1], [2, 3]]}),
        "v1": ("ids", {"instances": [ids, [4]]}),
        "v1_objects": ("two_inputs", {"instances": [{"ids": [1], "frames": [[0.5, 1]]}]}),
        "v2": ("ids", {"id": "a", "parameters": {"timeout": 50_000}, "inputs": [_v2("ids", "INT64", ids)]}),
        "v2_batch": ("ids", {"inputs": [_v2("ids", "INT64", [[1, 2], [3, 4]])]}),
        "v2_two_inputs": (
            "two_inputs",
            {"inputs": [_v2("ids", "INT64", [1, 2]), _v2("frames", "FP32", [[0.5, 1], [2, 3]])]},
        ),
        "v2_flat": ("rank_four", {"inputs": [{**_v2("grid", "FP64", [1.5] * 8), "shape": [2, 2, 2]}]}),
        "named_inputs": ("named_inputs", {"inputs": [[1, 2], [3, 4]]}),
        "truncated": ("named_inputs", [[1, 2]] * 12),
        "exact_lengths": ("exact_lengths", {"instances": [1, 2, 3, 4]}),
        "dtypes": (
            "dtypes",
            {"grid": [[[1, 2], [3, 4]]], "mask": [True], "half": [0.5], "kind": [1, 2, 3]},
        ),
        "rank_four": ("rank_four", [[[1, 2], [3, 4]]]),
        "time_last": ("time_last", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
        "narrow": ("narrow", [-128, 127]),
        "labels": ("labels", ids),
        "static": ("static", [1, 2, 50]),
        "costly": ("costly", ids),
        "session_start": ("sessions", {"ids": ids, "session": "new", "start": True}),
        "session_next": ("sessions", {"ids": ids, "session": OPEN_SESSION, "step": 2}),
        "session_replay": ("sessions", {"ids": [1, 2], "session": OPEN_SESSION, "start": True}),
        "session_end": ("sessions", {"ids": ids, "session": OPEN_SESSION, "end": True}),
        "session_without_id": ("sessions", {"ids": ids}),
        "session_v2": (
            "sessions",
            {
                "id": "a",
                "parameters": {"sequence_id": "new", "sequence_start": True},
                "inputs": [_v2("ids", "INT64", ids)],
            },
        ),
        "session_v1": ("sessions", {"instances": [ids], "session": "new", "start": "true"}),
        "few_sessions": ("few_sessions", {"ids": ids, "session": OPEN_SESSION, "step": 2}),
        "token_start": ("tokens", {"ids": ids, "start": True}),
        "token_next": ("tokens", {"ids": ids, "token": open_token()}),
    }
    cases = {name: Case(kind, json.dumps(body).encode()) for name, (kind, body) in bodies.items()}
    npy = {
        "npy": ("ids", torch.tensor(ids)),
        "npy_floats": ("rank_four", torch.ones(3, 2, 2)),
        "npy_bytes": ("narrow", torch.tensor([1, 2], dtype=torch.uint8)),
    }
    cases |= {name: Case(kind, write_npy(tensor), headers=_of_type(NPY)) for name, (kind, tensor) in npy.items()}
    cases |= binary_cases()
    json_type = _of_type(JSON)
    return cases | {
        "npy_answer": Case("ids", b"[1, 2]", headers=(("accept", NPY),)),
        "npy_either": Case("ids", b'{"instances": [[1], [2]]}', headers=(("Accept", f"{NPY}, {JSON}"),)),
        "data_field": Case("ids", b"[1, 2]", arrival="data"),
        "bare": Case("ids", b"[1, 2]", arrival="bare", decoded="json", headers=json_type),
        "decoded_json": Case("two_inputs", cases["plain_object"].body, decoded="json", headers=json_type),
        "decoded_text": Case("ids", b"[1, 2]", decoded="text", headers=_of_type("text/plain")),
        "session_headers": Case("sessions", b"[1]", headers=(("session", OPEN_SESSION), ("Step", "2"))),
        "session_form": Case("sessions", b"[1]", fields=(("session", OPEN_SESSION), ("end", "1"))),
        "session_only_end": Case("sessions", b"", arrival="form", fields=(("session", OPEN_SESSION), ("end", "true"))),
        "codec": Case("codec", b"1 2 3"),
        "codec_one": Case("codec", b"1"),
        "codec_lines": Case("codec_lines", b"1 2\n3"),
        "codec_decoded": Case("codec", b"4 5 6", decoded="text", headers=_of_type("text/plain")),
        "timeout": Case("ids", b"[1]", headers=(("x-request-timeout-ms", "1000"),)),
    }


def binary_cases() -> dict[str, Case]:
    """Return requests with binary tensors that are answered with 200, by name."""
    ids, as_bytes = torch.tensor([1, 2, 3]), {"parameters": {"binary_data_output": True}}
    wanted = {"outputs": [{"name": "classes", "parameters": {"binary_data": True}}, {"name": "means"}]}
    session = {"sequence_id": 7, "sequence_start": True, "binary_data_output": True}
    return {
        "binary": binary_case("ids", [("ids", ids)], id="a", **as_bytes),
        "binary_batch": binary_case("ids", [("ids", torch.tensor([[1, 2], [3, 4]]))], **as_bytes),
        "binary_ragged": binary_case("ids", [("ids", ids), ("ids", ids[:1])]),
        "binary_two_inputs": binary_case("two_inputs", [("ids", ids), ("frames", torch.ones(3, 2))], **wanted),
        "binary_dtypes": binary_case(
            "dtypes",
            [
                ("grid", torch.ones(1, 2, 2)),
                ("mask", torch.tensor([True])),
                ("half", torch.ones(1, dtype=torch.bfloat16)),
                ("kind", torch.tensor([1, 2, 3], dtype=torch.uint8)),
            ],
        ),
        "binary_widened": binary_case("ids", [("ids", ids.to(torch.uint8))]),
        "binary_session": binary_case("sessions", [("ids", ids)], parameters=session),
    }


def _v2(name: str, datatype: str, data: list[Any]) -> dict[str, object]:
    return {"name": name, "shape": list(torch.tensor(data).shape), "datatype": datatype, "data": data}


def _of_type(content_type: str) -> tuple[tuple[str, str], ...]:
    return (("content-type", content_type),)


def open_token() -> str:
    """Return the token of an open session of the service `tokens`."""
    model = token_model(bytes.fromhex(STATE_ID), IDENTITY.name)
    return sign_token(TokenState(2, model, bytes(4), int(NOW)), KEY)


def mutate(content: bytes, random: Random, mutate_octets: OctetMutation) -> bytes:
    """Change how a request arrives, or a part of its body; mostly into a request of the same format."""
    case = read_case(content, NAMES)
    binary = parts(case)
    if binary is not None and random.random() < 0.7:
        return write_case(mutate_binary(case, *binary, WORDS, random, mutate_octets))
    choice = random.random()
    if choice < 0.08:
        return write_case(replace(case, kind=random.choice(NAMES)))
    if choice < 0.13:
        changed = replace(case, arrival=random.choice(ARRIVALS), decoded=random.choice(DECODED))
        return write_case(changed)
    if choice < 0.25:
        return write_case(_with_header(case, random))
    return write_case(replace(case, body=_mutated_body(case, random, mutate_octets)))


def _with_header(case: Case, random: Random) -> Case:
    name = random.choice(list(HEADERS))
    pair = (random.choice((name, name.title(), name.upper())), random.choice(HEADERS[name]))
    if random.random() < 0.3:
        return replace(case, fields=(*case.fields[-3:], pair))
    return replace(case, headers=(*case.headers[-3:], pair) if random.random() < 0.8 else ())


def _mutated_body(case: Case, random: Random, mutate_octets: OctetMutation) -> bytes:
    choice = random.random()
    if case.body.startswith(b"\x93NUMPY"):
        return mutate_npy(random) if choice < 0.7 else mutate_octets(case.body)
    if choice < 0.03:
        return mutate_npy(random)
    if choice < 0.05:  # a V2 body with binary data behind its JSON
        return case.body + random.randbytes(16)
    if choice < 0.07:
        return base64.b64encode(case.body)
    changed = mutate_json(case.body, WORDS, random) if choice < 0.85 else None
    return mutate_octets(case.body) if changed is None else changed


def check(content: bytes) -> None:
    """Send a request together with a good one, and judge both answers.

    Raises:
        PropertyViolation: an answer is a 500, not valid, too large, or missing; or the good request is answered
            differently.
    """
    case = read_case(content, NAMES)
    kind = kind_of(case.kind)
    answer, good = _answers(kind, case.request())
    _check_valid(answer)
    require(good == _good_answer(case.kind), "a good request of the same batch is answered differently")


class Answer(NamedTuple):
    """The response to a client."""

    status: int
    body: bytes
    content_type: str
    json_bytes: str | None
    """The header that tells the length of the JSON, where the bytes of tensors follow."""


def _answers(kind: ServiceKind, request: RawRequest) -> tuple[Answer, Answer]:
    """Return the answer to a request, and to the good one."""
    kind.reset()
    requests = [kind.good, request]  # a session that both name is the good request's
    context = FakeContext(headers=[one.headers for one in requests])
    errors = _Errors()
    logger = logging.getLogger("torchserve_neuron_lstm")
    logger.addHandler(errors)
    try:
        bodies = handle(kind.service, [one.row for one in requests], context)
    finally:
        logger.removeHandler(errors)
    statuses = [context.statuses.get(index, 200) for index in range(len(requests))]
    if 500 in statuses:
        raise PropertyViolation(f"status 500 for {case_name(kind.service)}", errors.last)
    require(len(bodies) == len(requests), "each request has one answer")
    good, fuzzed = (
        Answer(statuses[index], body, context.content_types[index], context.response_headers.get(index, {}).get(LENGTH))
        for index, body in enumerate(bodies)
    )
    return fuzzed, good


def case_name(service: Service) -> str:
    """Return the names of the inputs of a service's model, for messages."""
    return "/".join(spec.name for spec in service.model.manifest.inputs)


class _Errors(logging.Handler):
    """The last exception that a service logged."""

    last: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.last = record.exc_info[1]


@cache
def _good_answer(kind_name: str) -> Answer:
    kind = kind_of(kind_name)
    kind.reset()
    (response,) = kind.service.handle([kind.good])
    return Answer(response.status, response.body, response.content_type, None)


def _check_valid(answer: Answer) -> None:
    status, body, content_type, json_bytes = answer
    require(status == 200 or status in STATUSES.values(), "the status is one that is documented")
    require(len(body) <= (MOST_RESPONSE_BYTES if status == 200 else LARGEST_REFUSAL), "the answer is bounded")
    if content_type == NPY:
        require(status == 200 and write_npy(read_npy(body)) == body, "a .npy answer can be read")
        return
    if json_bytes is not None:
        require(status == 200 and content_type == "application/octet-stream", "bytes are in an answer of their type")
        value = json.loads(body[: int(json_bytes)], parse_constant=_refuse_constant)
        sizes = [entry.get("parameters", {}).get("binary_data_size", 0) for entry in value["outputs"]]
        require(int(json_bytes) + sum(sizes) == len(body), "the entries tell how many bytes follow")
        return
    if content_type != JSON:
        require(status == 200 and content_type == "text/plain", "other answers are those of the user's codec")
        return
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except ValueError as error:
        raise PropertyViolation("a JSON answer can be read", error) from error
    if status != 200:
        require(value["code"] == status and value["type"] in STATUSES, "a refusal tells its status and type")
        require(isinstance(value["message"], str) and value["message"] != "", "a refusal tells its reason")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


TARGET = Target(
    seeds,
    mutate,
    check,
    {
        "handlers/formats/__init__.py": ("load_codec", "make_codec"),
        "handlers/formats/raw_request.py": (),
        "handlers/formats/request.py": ("RequestFormat",),
        "handlers/formats/sequences.py": (),
        "handlers/formats/json_formats.py": (),
        "handlers/formats/v2.py": ("encode",),
        "handlers/formats/v2_outputs.py": ("write_output",),
        "handlers/formats/binary_tensors.py": (),
        "handlers/formats/npy.py": ("write_npy", "_prefix"),
        "handlers/formats/custom.py": ("load_user_codec", "UserCodec", "_content_type"),
        "handlers/formats/tensors.py": (),
        "handlers/responses.py": ("internal",),
        "handlers/deadline.py": (),
        "handlers/streaming/fields.py": (),
    },
)
