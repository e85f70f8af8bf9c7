"""JSON formats: KServe V1, and plain JSON (an array, or an object by input name)."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar, Union

from ..responses import JSON, NPY, Encoded, RequestError, SessionKeys, abbreviate, malformed
from .binary_tensors import with_raw_data
from .json_text import fast_json, to_json
from .raw_request import Body
from .request import InferenceRequest, Outputs, RequestFormat
from .sequences import check_sequence_count, read_sequence, read_sequences

_DecodedT = TypeVar("_DecodedT")
BINARY = (bytes, bytearray)
_TOO_LARGE = 413
_MANY_OBJECTS = 1 << 16
"""Bytes of a text from which on its values are many."""
_MOST_NAMES = 100_000  # of values in objects
_NAME_END, _NAME_END_BYTES = re.compile(r'"\s*:'), re.compile(rb'"\s*:')
_LIST_BYTES, _OBJECT_BYTES = 88, 232  # of Python, at least


def parse_json(body: Body) -> object:
    """Parse a body with the standard library, unless TorchServe has parsed it already.

    Raises `RequestError`: 400, it is not JSON in UTF-8, or nested too deep.
    """
    text = body.value
    if not isinstance(text, (*BINARY, str)) or (isinstance(text, str) and text and body.content_type == JSON):
        return text  # parsed by TorchServe, a JSON string too
    if not text:
        raise malformed("the body is empty")
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
        return json.loads(decoded) if len(decoded) < _MANY_OBJECTS else _parsed(json.loads, decoded)
    except json.JSONDecodeError as error:
        raise malformed(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError:
        raise malformed("the body is not text in UTF-8") from None
    except RecursionError:
        raise malformed("the body is not JSON that can be read: its lists are nested too deep") from None
    except ValueError:  # a number of more digits than Python converts
        raise malformed("the body is not JSON that can be read: a number has too many digits") from None


def _parsed(parse: Callable[[Any], object], text: Union[str, bytes, bytearray]) -> object:
    """Parse without garbage collections, most of the time. Raises `RequestError`: 413, too many parts of a kind."""
    lists, objects = (text.count(sign) if isinstance(text, str) else text.count(sign.encode()) for sign in "[{")
    ends = _NAME_END.finditer(text) if isinstance(text, str) else _NAME_END_BYTES.finditer(text)
    names = sum(1 for _ in islice(ends, _MOST_NAMES + 1))
    if names > _MOST_NAMES or _LIST_BYTES * lists + _OBJECT_BYTES * objects > 20 * len(text) + 48_000_000:
        raise RequestError(
            "BodyTooLarge", f"the body has {lists} lists, {objects} objects and {names} names or more: too many"
        )
    if not gc.isenabled():
        return parse(text)
    gc.disable()
    try:
        return parse(text)
    finally:
        gc.enable()


def decode_json(body: Body, decode: Callable[[object], _DecodedT]) -> _DecodedT:
    """Decode a body's JSON value by orjson; where that fails, by the standard library.

    The standard library decides on everything that is refused. orjson knows neither NaN nor lone surrogates, and makes
    floats of integers beyond 64 bits, which are refused except for a float input, where they are the same floats. So
    both parsers lead to the same request, or to the same refusal. (The exception: lists a thousand deep, in an unused
    part of the body, are too deep for one of the two only.) The bytes of tensors after the JSON become the data of
    their entries.

    Raises `RequestError`: as `parse_json`, `with_raw_data` and `decode`.
    """
    if body.json_bytes is not None and isinstance(body.value, BINARY):
        whole = memoryview(body.value)
        tail = whole[body.json_bytes :]
        return decode_json(
            Body(bytes(whole[: body.json_bytes]), body.content_type), lambda value: decode(with_raw_data(value, tail))
        )
    fast = fast_json()
    if fast is not None and isinstance(body.value, BINARY):
        try:
            few = len(body.value) < _MANY_OBJECTS
            return decode(fast.loads(body.value) if few else _parsed(fast.loads, body.value))
        except ValueError:
            pass  # parsed again below, by the parser that decides
        except RequestError as error:
            if error.status == _TOO_LARGE:  # sizes are the same to both parsers, and parsing takes the longest then
                raise
    return decode(parse_json(body))


class PlainFormat(RequestFormat):
    """One sequence: a JSON array for a model of one input, or a JSON object by input name."""

    name: ClassVar[str] = "PLAIN"
    response_types: ClassVar[tuple[str, ...]] = (JSON, NPY)

    @property
    def sends_outputs(self) -> bool:
        """Whether the response has the outputs, and not the likeliest classes."""
        return self.context.labels is None

    def matches(self, value: object) -> bool:
        """Whether the value is plain JSON: every value that no other format takes."""
        return True

    def decode(self, value: object) -> InferenceRequest:
        """Decode the one sequence. Raises `RequestError`: as `read_sequence`."""
        values = value if isinstance(value, dict) else {self.context.only_input("a JSON array"): value}
        return InferenceRequest((read_sequence(values, self.context.manifest),), self)

    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode one output as it is, several as an object by name, the fields of a session beside them."""
        value = self._value(outputs[0])
        if session is not None:
            specs = self.context.manifest.outputs
            value = {**session, **(value if isinstance(value, dict) and len(specs) > 1 else {specs[0].name: value})}
        return to_json(value, self.context.max_response_bytes), JSON

    def _value(self, outputs: Outputs) -> object:
        if self.context.labels is not None:
            return self.context.labels.most_likely(outputs[0])
        if len(outputs) == 1:
            return outputs[0]
        return dict(zip((spec.name for spec in self.context.manifest.outputs), outputs))


class V1Format(PlainFormat):
    """KServe V1: `instances`, answered by `predictions`."""

    name: ClassVar[str] = "V1"
    reads = "object"

    def matches(self, value: object) -> bool:
        """Whether the value is an object with `instances`, where no input has that name."""
        return (
            isinstance(value, dict)
            and "instances" in value
            and all(spec.name != "instances" for spec in self.context.manifest.inputs)
        )

    def decode(self, value: object) -> InferenceRequest:
        """Decode one sequence for each instance."""
        assert isinstance(value, dict)
        instances = value["instances"]
        if not isinstance(instances, list):
            found = abbreviate(instances)
            raise malformed(f"instances must be a list with one entry for each sequence, not {found}")
        check_sequence_count(len(instances), "instances", self.context.manifest)
        sequences = [
            instance
            if isinstance(instance, Mapping)
            else {self.context.only_input("an instance without names"): instance}
            for instance in instances
        ]
        return InferenceRequest(read_sequences(sequences, self.context.manifest, "instances"), self)

    def encode(self, request: InferenceRequest, outputs: Sequence[Outputs], session: SessionKeys = None) -> Encoded:
        """Encode a prediction for each instance, the fields of a session beside them."""
        value = {**(session or {}), "predictions": [self._value(own) for own in outputs]}
        return to_json(value, self.context.max_response_bytes), JSON
