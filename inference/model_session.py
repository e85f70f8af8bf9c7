"""One session of an archive in the user's own process.

Its state is stored where a server stores the state of its sessions.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..bucketing.padding import torch_dtype
from ..bucketing.shapes import TensorSpec
from ..config.manifest import Manifest
from ..handlers.formats.binary_tensors import from_bytes
from ..handlers.formats.raw_request import RawRequest
from ..handlers.formats.request import write_tensor
from ..handlers.responses import JSON_LENGTH_HEADER, RawResponse, http_headers
from .values import read_one, write_one

Ask = Callable[[RawRequest], RawResponse]
"""The service, for one request."""


class SessionError(Exception):
    """A chunk that was not applied. `kind` is the `type` of a server's refusal; the message says why."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class ModelSession:
    """A sequence that arrives in chunks: each continues from the state after the one before it.

    Chunks of several threads are applied one after the other. `id` names the session; None until the first chunk of a
    session without a name. `step` is the number of timesteps that were applied; None for a session that is resumed,
    until its first answer.
    """

    def __init__(self, ask: Ask, manifest: Manifest, id: str | None, *, resume: bool) -> None:  # noqa: A002 - the standard term
        assert manifest.streaming is not None
        self._ask, self._manifest, self._names = ask, manifest, manifest.streaming.fields
        self.id = id
        self.step: int | None = None if resume else 0
        self._token: str | None = None
        self._one_chunk = threading.Lock()

    def send(self, chunk: object, *, end: bool = False, as_numpy: bool = False) -> object:
        """Apply the next chunk and return its outputs, in the form of `OpenArchive.predict`.

        It is saved before this returns. `end` ends the session with this chunk.

        Raises `InvalidSequence`: the chunk is not one that the model takes; nothing is applied.
        Raises `SessionError`: the session does not exist, has ended, or was changed by another client.
        """
        manifest = self._manifest
        tensors = read_one(chunk, 0, manifest).tensors
        with self._one_chunk:
            head, outputs = self._request(_body(tensors, manifest.inputs), {self._names.end: "true"} if end else {})
            self._continue(head["parameters"])
        pairs = zip(outputs, manifest.outputs, strict=True)
        found = [
            from_bytes(bytearray(content), torch_dtype(spec)).reshape(entry["shape"])
            for (entry, content), spec in pairs
        ]
        return write_one(found, manifest.outputs, as_numpy=as_numpy)

    def end(self) -> None:
        """End the session without a further chunk. Raises `SessionError`: the session does not exist, or has ended."""
        with self._one_chunk:
            if self.step == 0:
                raise SessionError("SessionUnknown", "the session has not begun: send a chunk first")
            head, _ = self._request((b"", 0), {self._names.end: "true"})
            self._continue(head)

    def _continue(self, fields: Mapping[str, Any]) -> None:
        self.id, step, token = str(fields[self._names.id]), fields[self._names.step], fields.get(self._names.token)
        self.step, self._token = step, None if token is None else str(token)

    def _request(
        self, body: tuple[bytes, int], more: Mapping[str, str]
    ) -> tuple[dict[str, Any], list[tuple[Mapping[str, Any], memoryview]]]:
        """Return the JSON of the response, and the entry and the bytes of each output."""
        content, json_bytes = body
        length = {JSON_LENGTH_HEADER: str(json_bytes)} if content else {}
        response = self._ask(RawRequest({"body": content} if content else {}, {**self._fields(), **more, **length}))
        if response.status != 200:
            refusal = json.loads(response.body)
            raise SessionError(refusal["type"], refusal["message"])
        told = http_headers(response)[1].get(JSON_LENGTH_HEADER)
        end = len(response.body) if told is None else int(told)
        head, rest = json.loads(response.body[:end]), memoryview(response.body)[end:]
        outputs = []
        for entry in head.get("outputs", []):
            size = entry["parameters"]["binary_data_size"]
            outputs.append((entry, rest[:size]))
            rest = rest[size:]
        return head, outputs

    def _fields(self) -> dict[str, str]:
        """The fields by which the next request names its session."""
        names, fields = self._names, {}
        if self.id is not None:
            fields[names.id] = self.id
        if self.step == 0 and self.id is not None:
            fields[names.start] = "true"
        elif self.step:
            fields[names.step] = str(self.step)
        if self._token is not None:
            fields[names.token] = self._token
        return fields


def _body(tensors: Sequence[torch.Tensor], specs: Sequence[TensorSpec]) -> tuple[bytes, int]:
    """A request of the Open Inference Protocol with binary tensors, and the number of bytes of its JSON."""
    written = [write_tensor(tensor, spec, binary=True) for tensor, spec in zip(tensors, specs, strict=True)]
    inputs = [entry for entry, _ in written]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode("ascii")
    return b"".join([text, *(content for _, content in written)]), len(text)
