"""Answers to the body that a request's format asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..config.manifest import Manifest
from .json_text import to_json
from .labels import Labels
from .npy import write_npy
from .request import Form, Request
from .rows import JSON, NPY
from .v2 import Identity, write_v2

Answer = tuple[torch.Tensor, ...]


def encode(
    request: Request, answers: Sequence[Answer], manifest: Manifest, identity: Identity, labels: Labels | None
) -> tuple[bytes, str]:
    """The body of the response, and its content type. `answers` has one entry for each item of the request.

    Raises:
        RequestError: 500, the format cannot say the answer.
    """
    if request.npy:
        return write_npy(answers[0][0]), NPY
    if request.form is Form.V2:
        return to_json(write_v2(request, answers, manifest.outputs, identity)), JSON
    values = [_value(answer, manifest, labels) for answer in answers]
    return to_json({"predictions": values} if request.form is Form.V1 else values[0]), JSON


def _value(answer: Answer, manifest: Manifest, labels: Labels | None) -> object:
    """One output as it is, several by name."""
    if labels is not None:
        return labels.most_likely(answer[0])
    if len(answer) == 1:
        return answer[0]
    return dict(zip((spec.name for spec in manifest.outputs), answer, strict=True))
