"""Requests with which the fuzzer begins: all services and formats, and refusals rare by chance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from torchserve_neuron_lstm.handlers.formats.npy import write_npy
from torchserve_neuron_lstm.handlers.responses import JSON, NPY
from torchserve_neuron_lstm.sessions.token import TokenState, sign_token, token_model

from .case import Case, write_case
from .mutation.binary_tensors import binary_case, of_parts
from .served.kinds import IDENTITY, KEY, NOW, OPEN_SESSION
from .served.manifests import STATE_ID


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
