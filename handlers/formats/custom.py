"""The user's codec: a class that decodes a body into inputs, and encodes outputs as a response.

The YAML names it as `codec: module:Class`; its file is given with `--extra-files`. The class is instantiated once per
worker, without arguments, with the archive's directory as the working directory. It can import the archive's modules.

    class Codec:
        def decode(self, body: bytes, content_type: str) -> Mapping[str, list | Tensor] | list[Mapping]
        def encode(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> object

`decode` returns the inputs by name, without batch dimension; or a list of such mappings, for several sequences in one
request. `encode` is called for each sequence with its outputs and inputs, and returns a JSON value (which may hold
tensors), or bytes of the class attribute `content_type`. The response to a list of sequences is a JSON array, in their
order. A ValueError tells the client what is wrong with the request (400, with its message); anything else is a 500.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import torch

from ..responses import JSON, Encoded, SessionKeys, abbreviate, internal, invalid, malformed
from ..runtime.user_code import Importing, end_error, import_reference, is_interrupt, working_directory
from .json_text import to_json
from .raw_request import Body
from .request import InferenceRequest, Outputs, RequestFormat, SequenceInput
from .sequences import read_sequence, read_sequences

_CONTENT_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w-]+=[\w.+-]+)*", re.ASCII)
_MAX_MESSAGE = 500  # characters of a user's own error message


class UserCodec(Protocol):
    """The interface of the user's class."""

    def decode(self, body: bytes, content_type: str) -> Any:
        """Return the inputs of one sequence by name, or a list of such mappings."""

    def encode(self, outputs: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> object:
        """Return the response to one sequence."""


def load_user_codec(reference: str, directory: Path, importing: Importing = working_directory) -> UserCodec:
    """Instantiate the class that `reference` ("module:Class") names, from a file in `directory`.

    Raises `RuntimeError`: the module or the class is missing, or cannot be instantiated; with the cause.
    """
    with importing(directory):
        try:
            codec = import_reference(reference, directory)()
        except (Exception, SystemExit) as error:
            raise RuntimeError(f"codec {reference}: {type(error).__name__}: {error}") from error
    for method in ("decode", "encode"):
        if not callable(getattr(codec, method, None)):
            raise RuntimeError(f"codec {reference}: the class has no method {method!r}")  # noqa: TRY004 - as for other faults of a codec
    return cast("UserCodec", codec)


@dataclass(frozen=True)
class CustomFormat(RequestFormat):
    """One sequence, decoded and encoded by the user's class."""

    name: ClassVar[str] = "CODEC"
    reads = "body"
    user: UserCodec

    @property
    def sends_outputs(self) -> bool:
        """Whether the response has the outputs: the user's class decides."""
        return False

    def matches(self, value: object) -> bool:
        """Whether the user's class decodes the body: it decodes every one."""
        return True

    def decode(self, value: object) -> InferenceRequest:
        """Decode the sequences that the user's `decode` returns."""
        assert isinstance(value, Body)
        with _errors_of_user():
            decoded = self.user.decode(_as_bytes(value), value.content_type)
        manifest = self.context.manifest
        if isinstance(decoded, Mapping):
            return InferenceRequest(_copied([read_sequence(decoded, manifest)]), self)
        if isinstance(decoded, list) and all(isinstance(one, Mapping) for one in decoded):
            sequences = read_sequences(decoded, manifest, "sequences")
            return InferenceRequest(_copied(sequences), CustomListFormat(self.context, self.user))
        found = abbreviate(decoded)
        raise TypeError(f"the codec's decode must return a mapping or a list of mappings, not {found}")

    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode the return value of the user's `encode`: as JSON, or unchanged if it is bytes.

        The fields of a session are not in the body, which is the user's own; the response's headers have them.
        """
        (encoded,) = self._encode_each(request, outputs)
        if isinstance(encoded, (bytes, bytearray)):
            content_type = getattr(self.user, "content_type", None)
            if isinstance(content_type, str) and _CONTENT_TYPE.fullmatch(content_type):
                return bytes(encoded), content_type
            raise internal(
                "the model's codec returned bytes, but its content_type is not a content type like 'text/plain'"
            )
        return to_json(encoded, self.context.max_response_bytes), JSON

    def _encode_each(self, request: InferenceRequest, outputs: Sequence[Outputs]) -> list[object]:
        output_names = [spec.name for spec in self.context.manifest.outputs]
        input_names = [spec.name for spec in self.context.manifest.inputs]
        pairs = [
            (dict(zip(output_names, own)), dict(zip(input_names, sequence.tensors)))
            for sequence, own in zip(request.sequences, outputs)
        ]
        with _errors_of_user():
            return [self.user.encode(*pair) for pair in pairs]


def _copied(sequences: Sequence[SequenceInput]) -> tuple[SequenceInput, ...]:
    """Copy the tensors: the user's class may write the next request into the same ones."""
    return tuple([one._replace(tensors=tuple([tensor.clone() for tensor in one.tensors])) for one in sequences])


@contextmanager
def _errors_of_user() -> Iterator[None]:
    """Convert the errors that the user's code raises.

    Raises `RequestError`: 400 with the message of a ValueError.
    Raises `RuntimeError`: the code called sys.exit(), or raised another error that is no `Exception`.
    """
    try:
        yield
    except ValueError as error:
        raise invalid(str(error)[:_MAX_MESSAGE]) from error
    except Exception:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise end_error(error, "the codec") from error


class CustomListFormat(CustomFormat):
    """A list of sequences, decoded and encoded by the user's class."""

    name: ClassVar[str] = "CODEC_LIST"

    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode the return values of the user's `encode` as a JSON array."""
        return to_json(self._encode_each(request, outputs), self.context.max_response_bytes), JSON


def _as_bytes(body: Body) -> bytes:
    """Return the body as it came; JSON that TorchServe has parsed is written again."""
    if isinstance(body.value, (bytes, bytearray)):
        return bytes(body.value)
    if isinstance(body.value, str) and body.content_type != JSON:
        return body.value.encode("utf-8")
    try:
        return json.dumps(body.value).encode("ascii")
    except RecursionError:
        raise malformed("the body's lists are nested too deep") from None
