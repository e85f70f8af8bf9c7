"""Between bodies and sequences: the formats everyone gets, or the model's own codec."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...config.manifest import Manifest
from ..responses import JSON, RequestError, abbreviate, internal, invalid, malformed
from .custom import UserCodec, load_user_codec
from .json_formats import Outputs, decode, encode, parse_json
from .json_text import to_json
from .labels import Labels, read_labels
from .request import Body, Form, InferenceRequest, TorchServeRequest, read_sequence, read_sequences
from .v2 import ModelIdentity, error_envelope, needs_envelope

_CONTENT_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w-]+=[\w.+-]+)*", re.ASCII)
_LONGEST_MESSAGE = 500  # characters of a user's own error message


class Codec(Protocol):
    """Turns rows into requests and answers into bodies; every refusal is a RequestError."""

    def decode(self, raw: TorchServeRequest) -> InferenceRequest:
        """The sequences that a row asks for."""

    def encode(
        self, request: InferenceRequest, answers: Sequence[Outputs], session: Mapping[str, object] | None = None
    ) -> tuple[bytes, str]:
        """The body of a response and its content type; `session` is what an answer says of its session."""


def load_codec(manifest: Manifest, directory: Path, identity: ModelIdentity) -> Codec:
    """The codec of an unpacked archive.

    Raises:
        RuntimeError: the user's codec cannot be loaded, or the class names do not fit the model.
    """
    if manifest.codec is not None:
        return CustomCodec(manifest, load_user_codec(manifest.codec, directory))
    return StandardCodec(manifest, identity, read_labels(directory, manifest.outputs))


def error_body(error: RequestError, raw: TorchServeRequest, manifest: Manifest, identity: ModelIdentity) -> bytes:
    """What a refused request gets: `code`, `type`, `message`; over gRPC, which has no status, that is all there is.

    A V2 request gets them within a V2 response that has no outputs.
    """
    facts: dict[str, object] = {"code": error.status, "type": error.kind, "message": error.message}
    value = _parsed(raw)
    if needs_envelope(value, manifest.inputs):
        facts |= error_envelope(value, identity) | {"error": error.message}
    return to_json(facts)


def _parsed(raw: TorchServeRequest) -> object:
    try:
        return parse_json(raw.body())
    except RequestError:
        return None


@dataclass(frozen=True)
class StandardCodec:
    """JSON, V1, V2 and .npy."""

    manifest: Manifest
    identity: ModelIdentity
    labels: Labels | None = None

    def decode(self, raw: TorchServeRequest) -> InferenceRequest:
        """The sequences of one row.

        Raises:
            RequestError: why there is no answer to it.
        """
        return decode(raw, self.manifest)

    def encode(
        self, request: InferenceRequest, answers: Sequence[Outputs], session: Mapping[str, object] | None = None
    ) -> tuple[bytes, str]:
        """The body and its content type.

        Raises:
            RequestError: the format cannot say the answer.
        """
        return encode(request, answers, self.manifest, self.identity, self.labels, session)


@dataclass(frozen=True)
class CustomCodec:
    """The user's class. What it raises as a ValueError is the client's fault; the rest is left to the caller."""

    manifest: Manifest
    user: UserCodec

    def decode(self, raw: TorchServeRequest) -> InferenceRequest:
        """The sequences that the user's `decode` makes of one row.

        Raises:
            RequestError: 400 with the user's own message, or what the model does not take.
        """
        body = raw.body()
        try:
            made = self.user.decode(_as_bytes(body), body.content_type)
        except ValueError as error:
            raise invalid(str(error)[:_LONGEST_MESSAGE]) from error
        if isinstance(made, Mapping):
            return InferenceRequest((read_sequence(made, self.manifest),), Form.CODEC)
        if isinstance(made, list) and all(isinstance(one, Mapping) for one in made):
            return InferenceRequest(read_sequences(made, self.manifest, "sequences"), Form.CODEC_LIST)
        raise TypeError(f"the codec's decode must return a mapping or a list of mappings, not {abbreviate(made)}")

    def encode(
        self, request: InferenceRequest, answers: Sequence[Outputs], session: Mapping[str, object] | None = None
    ) -> tuple[bytes, str]:
        """What the user's `encode` makes of each sequence's outputs, as JSON unless it gives bytes.

        Of the session it says nothing: the body is the user's own, and the response's headers have it.

        Raises:
            RequestError: 400 with the user's own message, or 500 for what is no answer.
        """
        made = [self._encode_one(request, place, answer) for place, answer in enumerate(answers)]
        if request.form is Form.CODEC and isinstance(made[0], bytes | bytearray):
            return bytes(made[0]), self._content_type()
        return to_json(made[0] if request.form is Form.CODEC else made), JSON

    def _encode_one(self, request: InferenceRequest, place: int, answer: Outputs) -> object:
        outputs = dict(zip((spec.name for spec in self.manifest.outputs), answer, strict=True))
        inputs = zip((spec.name for spec in self.manifest.inputs), request.items[place].tensors, strict=True)
        try:
            return self.user.encode(outputs, dict(inputs))
        except ValueError as error:
            raise invalid(str(error)[:_LONGEST_MESSAGE]) from error

    def _content_type(self) -> str:
        given = getattr(self.user, "content_type", None)
        if isinstance(given, str) and _CONTENT_TYPE.fullmatch(given):
            return given
        raise internal("the model's codec returned bytes, but its content_type is no content type like 'text/plain'")


def _as_bytes(body: Body) -> bytes:
    """The body as it came; JSON that TorchServe has parsed is written again."""
    if isinstance(body.value, bytes | bytearray):
        return bytes(body.value)
    if isinstance(body.value, str):
        return body.value.encode("utf-8")
    try:
        return json.dumps(body.value).encode("ascii")
    except RecursionError:
        raise malformed("the body's lists are nested too deep") from None
