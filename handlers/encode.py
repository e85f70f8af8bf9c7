"""Answers to the body that a request's format asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    request: Request,
    answers: Sequence[Answer],
    manifest: Manifest,
    identity: Identity,
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


def _value(answer: Answer, manifest: Manifest, labels: Labels | None) -> object:
    """One output as it is, several by name."""
    if labels is not None:
        return labels.most_likely(answer[0])
    if len(answer) == 1:
        return answer[0]
    return dict(zip((spec.name for spec in manifest.outputs), answer, strict=True))
