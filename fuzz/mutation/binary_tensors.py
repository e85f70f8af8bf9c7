"""Requests with binary tensors: made, and mutated in their JSON, bytes or length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from torchserve_neuron_lstm.handlers.formats.binary_tensors import DATATYPES
from torchserve_neuron_lstm.handlers.formats.tensor_bytes import to_bytes
from torchserve_neuron_lstm.handlers.responses import JSON_LENGTH_HEADER

from ..case import Case
from ..target import OctetMutation
from .json_text import mutate_json

LENGTH = JSON_LENGTH_HEADER
_NAMES = {f"torch.{dtype}": name for dtype, name in DATATYPES.items()}


def binary_case(kind: str, tensors: Sequence[tuple[str, torch.Tensor]], **more: Any) -> Case:
    """Return a request whose tensors are bytes; `more` are further keys of its JSON."""
    contents = [to_bytes(tensor) for _, tensor in tensors]
    entries = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "datatype": _NAMES[str(tensor.dtype)],
            "parameters": {"binary_data_size": len(content)},
        }
        for (name, tensor), content in zip(tensors, contents, strict=True)
    ]
    return of_parts(Case(kind, b""), json.dumps({"inputs": entries, **more}).encode(), b"".join(contents))


def of_parts(case: Case, text: bytes, contents: bytes) -> Case:
    """Return the case with another body, whose length of JSON its header tells."""
    others = tuple(pair for pair in case.headers if pair[0].lower() != LENGTH.lower())
    return replace(case, body=text + contents, headers=((LENGTH, str(len(text))), *others))


def parts(case: Case) -> tuple[bytes, bytes] | None:
    """Return the JSON and the bytes after it; None if the case has no binary tensors."""
    told = next((value for name, value in case.headers if name.lower() == LENGTH.lower()), "")
    if not (told.isascii() and told.isdigit() and len(told) < 9 and int(told) <= len(case.body)):
        return None
    return case.body[: int(told)], case.body[int(told) :]


def mutate_binary(
    case: Case, text: bytes, contents: bytes, words: Sequence[str], random: Random, mutate_octets: OctetMutation
) -> Case:
    """Change the JSON, the bytes after it, or where the one ends and the other begins."""
    choice = random.random()
    if choice < 0.6:
        changed = mutate_json(text, words, random)
        return of_parts(case, mutate_octets(text) if changed is None else changed, contents)
    if choice < 0.85:
        return of_parts(case, text, mutate_octets(contents))
    return of_parts(case, (text + contents)[: len(text) + random.randint(-2, 2)], contents)
