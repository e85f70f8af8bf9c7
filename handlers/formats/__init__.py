"""Request and response formats, and the codec that chooses among them.

A request becomes tensors in three steps, each of which may refuse it with a `RequestError`:

    row of TorchServe's batch
      | RawRequest.body        MalformedBody: the request has no body
    body: bytes, or a value that TorchServe has parsed
      | parse_json, read_npy          MalformedBody: not JSON, not a .npy file
    value: JSON value or tensor
      | RequestFormat.decode          InvalidInput, TooManySequences, SequenceTooLong, LengthNotAccepted
    InferenceRequest: input tensors of each sequence
      | Codec.decode                  NotAcceptable: .npy cannot hold the response

`RequestFormat.encode` makes the response's body of the outputs (AnswerNotFinite: V2 has no NaN). A new format is one
file here and one entry in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...config.manifest import Manifest
from ..responses import (
    DEFAULT_MAX_RESPONSE_BYTES,
    JSON_LENGTH_HEADER,
    NPY,
    Encoded,
    RequestError,
    SessionKeys,
    malformed,
)
from ..runtime.user_code import Importing, working_directory
from .custom import CustomFormat, UserCodec, load_user_codec
from .json_formats import PlainFormat, V1Format, decode_json
from .json_text import to_json
from .npy import NpyFormat, write_npy
from .raw_request import Body, RawRequest
from .request import FormatContext, InferenceRequest, Labels, ModelIdentity, Outputs, RequestFormat, read_labels
from .v2 import V2Format

FORMATS: tuple[Callable[[FormatContext], RequestFormat], ...] = (NpyFormat, V2Format, V1Format, PlainFormat)
"""The formats of every archive; the first that matches decodes a body."""


def load_codec(
    manifest: Manifest,
    directory: Path,
    identity: ModelIdentity,
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES,
    importing: Importing = working_directory,
) -> Codec:
    """Load the codec of an unpacked archive. `importing` lets the user's codec be imported.

    Raises `RuntimeError`: the user's codec cannot be loaded, or the class names do not fit the model.
    """
    user_codec = None if manifest.codec is None else load_user_codec(manifest.codec, directory, importing)
    labels = read_labels(directory, manifest.outputs) if user_codec is None else None
    return make_codec(manifest, identity, labels, user_codec, max_response_bytes)


def make_codec(
    manifest: Manifest,
    identity: ModelIdentity,
    labels: Labels | None = None,
    user_codec: UserCodec | None = None,
    max_response_bytes: int = DEFAULT_MAX_RESPONSE_BYTES,
) -> Codec:
    """Make the codec of `FORMATS`, or that of the user's codec, which decodes every body."""
    context = FormatContext(manifest, identity, labels, max_response_bytes)
    custom = () if user_codec is None else (CustomFormat(context, user_codec),)
    return Codec(manifest, (*custom, *(make_format(context) for make_format in FORMATS)))


@dataclass(frozen=True)
class Codec:
    """The formats of one archive, in the order in which they are tried."""

    manifest: Manifest
    formats: tuple[RequestFormat, ...]

    @cached_property
    def _body_formats(self) -> tuple[RequestFormat, ...]:
        return tuple(one for one in self.formats if one.reads == "body")

    @cached_property
    def _object_formats(self) -> tuple[RequestFormat, ...]:
        return tuple(one for one in self.formats if one.reads != "body")

    @cached_property
    def _value_formats(self) -> tuple[RequestFormat, ...]:
        return tuple(one for one in self.formats if one.reads == "value")

    def is_json(self, body: Body) -> bool:
        """Whether the body is parsed as JSON."""
        return not any(one.matches(body) for one in self._body_formats)

    def decode(self, request: RawRequest) -> InferenceRequest:
        """Decode the sequences of a request. Raises `RequestError`: why the request is refused."""
        decoded = self._decode_body(request)
        if not (request.accepts_npy and decoded.format.response_types):
            return decoded
        if NPY in decoded.format.response_types and len(decoded.sequences) == len(self.manifest.outputs) == 1:
            return decoded._replace(npy=True)
        if request.accepts_json:
            return decoded
        error = RequestError(
            "NotAcceptable",
            f"{NPY} holds one array: it can hold the response for one sequence of a model with one output. "
            "Accept application/json instead",
        )
        self.add_keys(error, decoded)
        raise error

    def decode_end(self, request: RawRequest) -> InferenceRequest | None:
        """Decode a request that only ends its session, whose JSON is parsed already; None: it has a chunk.

        Raises `RequestError`: why the request is refused.
        """
        value = request.written()
        one = next((one for one in self._object_formats if isinstance(value, dict) and one.matches(value)), None)
        try:
            return None if one is None else one.decode_end(value)
        except RequestError as error:
            self.add_keys(error, value)
            raise

    def _decode_body(self, request: RawRequest) -> InferenceRequest:
        body = request.body()
        self.check_size(request, body.value)
        for one in self._body_formats:
            if one.matches(body):
                return one.decode(body)
        return decode_json(body, self._decode_value)

    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode the outputs of each sequence as a body and its content type; `session` as in `RequestFormat`.

        Raises `RequestError`: the format cannot represent the outputs.
        """
        if request.npy:
            return write_npy(outputs[0][0]), NPY
        return request.format.encode(request, outputs, session)

    def encode_error(self, error: RequestError, refused: object) -> bytes:
        """Encode the body of a refused request: `code`, `type`, `message`, and the keys that its format adds.

        `refused` is the accepted request that failed, or the refused one. gRPC has no status: the body
        is all that its clients get.
        """
        facts: dict[str, object] = {"code": error.status, "type": error.kind, "message": error.message}
        keys = self.error_keys(error, refused) if error.body_keys is None else error.body_keys
        return to_json({**facts, **keys})

    def add_keys(self, error: RequestError, refused: object) -> None:
        """Add to an error the keys that the format of the refused request adds to its body."""
        error.body_keys = self.error_keys(error, refused)

    def error_keys(self, error: RequestError, refused: object) -> Mapping[str, object]:
        """Return the keys that a format adds.

        The body is not parsed, because a refusal must cost little. So only the header of binary tensors shows the
        format. A request over gRPC may be one of V2, whose clients need its keys, and gets them.
        """
        if isinstance(refused, InferenceRequest):
            return refused.format.error_keys(error, refused) or {}
        if isinstance(refused, RawRequest):
            if refused.header(JSON_LENGTH_HEADER.lower()):
                return {"error": error.message}
            written = refused.written()
            if not isinstance(written, (bytes, bytearray, str)):
                refused = written
            elif not refused.came_over_grpc:
                return {}
        added = (one.error_keys(error, refused) for one in self.formats)
        return next((keys for keys in added if keys is not None), {})

    def _decode_value(self, value: object) -> InferenceRequest:
        try:
            for one in self._object_formats if isinstance(value, dict) else self._value_formats:
                if one.matches(value):
                    return one.decode(value)
        except RequestError as error:
            self.add_keys(error, value)
            raise
        raise malformed("the body is in none of the formats that are served here")

    def check_size(self, request: RawRequest, given: object) -> None:
        """Refuse a request whose body, as `given`, has too many bytes to be parsed. Raises `RequestError`: 413."""
        most = self.manifest.limits.body_bytes
        size = len(given) if isinstance(given, (bytes, bytearray, str)) else request.content_length
        if size > most:
            raise RequestError("BodyTooLarge", f"the body has {size} bytes, one request may have at most {most}")
