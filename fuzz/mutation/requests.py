"""Mutations of requests: of their body by its format, of a header, or of the bytes of the case."""

from __future__ import annotations

import base64
from dataclasses import replace
from random import Random

from torchserve_neuron_lstm.handlers.responses import JSON, NPY

from ..case import ARRIVALS, DECODED, Case, read_case, write_case
from ..served.kinds import KIND_NAMES, NOW, OPEN_SESSION
from ..served.manifests import FIELDS
from ..target import OctetMutation
from .binary_tensors import mutate_binary, parts
from .json_text import mutate_json
from .npy import mutate_npy

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


def mutate_request(content: bytes, random: Random, mutate_octets: OctetMutation) -> bytes:
    """Change how a request arrives, or a part of its body; mostly into a request of the same format."""
    case = read_case(content, KIND_NAMES)
    binary = parts(case)
    if binary is not None and random.random() < 0.7:
        return write_case(mutate_binary(case, *binary, WORDS, random, mutate_octets))
    choice = random.random()
    if choice < 0.08:
        return write_case(replace(case, kind=random.choice(KIND_NAMES)))
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
