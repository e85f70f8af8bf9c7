"""Session fields of a request: in headers, in fields of a form or of gRPC, or in the JSON body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ...sessions.settings import SessionFields, normalize_field_name
from ..formats.json_formats import decode_json
from ..formats.raw_request import BODY_FIELDS, Body, RawRequest
from ..responses import abbreviate, invalid

_V2_PARAMETERS = {"sequence_id": "id", "sequence_start": "start", "sequence_end": "end", "sequence_step": "step"}
"""The names that clients of the Open Inference Protocol may use in `parameters` too."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False, "": False}
_MAX_STEP = 2**63 - 1


class SessionFieldValues(NamedTuple):
    """The values of a request's session fields."""

    id: str | None
    start: bool
    end: bool
    step: int | None
    """Timesteps of the session before this request."""
    token: str | None


FoundField = tuple[str, str, object]
"""A session field of a request: the name that the client wrote, its key in `SessionFieldValues`, and its value."""


def find_session_fields(
    request: RawRequest, names: SessionFields, is_json: Callable[[Body], bool]
) -> tuple[list[FoundField], RawRequest]:
    """Find the session fields of a request; returns them and the request without them.

    Names are compared without case, and `-` counts as `_`: proxies change the one and drop the other. Fields in the
    body are read only where `is_json` holds for it.

    Raises `RequestError`: 400, the body cannot be read.
    """
    keys = {normalize_field_name(getattr(names, key)): key for key in SessionFieldValues._fields}
    found = [
        (name, key, value)
        for name, value in _fields_outside_body(request)
        if (key := keys.get(normalize_field_name(name))) is not None
    ]
    in_body, rest = _split_body(request, keys, is_json)
    return found + in_body, rest


def id_outside_body(request: RawRequest, names: SessionFields) -> str | None:
    """Return the session that the headers or the form fields name, whether or not other fields are valid."""
    wanted = normalize_field_name(names.id)
    fields = _fields_outside_body(request)
    return next((str(value) for name, value in fields if value and normalize_field_name(name) == wanted), None)


def read_session_fields(found: Sequence[FoundField], names: SessionFields) -> SessionFieldValues:
    """Return the values of the fields that were found.

    Raises `RequestError`: 400, a field is not valid, or two places have different values of it.
    """
    values: dict[str, object] = {}
    for name, key, value in found:
        if value is None:
            continue
        if key in values and _comparable(key, values[key]) != _comparable(key, value):
            raise invalid(f"{abbreviate(name)} is given twice, with different values")
        values[key] = value
    for key in ("id", "token"):
        if key in values and not isinstance(values[key], str):
            raise invalid(f"{getattr(names, key)} must be a string, not {abbreviate(values[key])}")
    return SessionFieldValues(
        id=str(values["id"]) if values.get("id") else None,
        start=_boolean(values.get("start", False), names.start),
        end=_boolean(values.get("end", False), names.end),
        step=_step(values["step"], names.step) if "step" in values else None,
        token=str(values["token"]) if values.get("token") else None,
    )


def _fields_outside_body(request: RawRequest) -> Iterator[tuple[str, object]]:
    for name, value in request.headers.items():
        if isinstance(value, str):
            yield name, value
    for name, value in request.row.items():
        if name not in BODY_FIELDS:
            yield name, value.decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else value


def _split_body(
    request: RawRequest, keys: Mapping[str, str], is_json: Callable[[Body], bool]
) -> tuple[list[FoundField], RawRequest]:
    """Return the fields in a JSON object, and the request with the parsed body without them."""
    if not has_body(request) or not is_json(body := request.body()):
        return [], request
    value = decode_json(body, lambda parsed: parsed)
    if not isinstance(value, dict):
        return [], request
    found = [(name, key, value[name]) for name in value if (key := keys.get(normalize_field_name(name)))]
    nested = value.get("parameters")
    if isinstance(nested, Mapping):
        known = {**keys, **_V2_PARAMETERS}
        found += [
            (name, key, _parameter(name, nested[name]))
            for name in nested
            if (key := known.get(normalize_field_name(name)))
        ]
    rest = {name: part for name, part in value.items() if normalize_field_name(name) not in keys}
    field = next((name for name in BODY_FIELDS if name in request.row), BODY_FIELDS[0])
    return found, RawRequest({field: rest}, request.headers)


def _parameter(name: str, value: object) -> object:
    """Return the value of a field in V2's `parameters`, where an id may be a whole number; 0 is none."""
    is_number = normalize_field_name(name) == "sequence_id" and type(value) is int and 0 <= value < 1 << 64
    return (str(value) if value else None) if is_number else value


def has_body(request: RawRequest) -> bool:
    """Whether the request has a body that is not empty."""
    return any(request.row.get(name) not in (None, b"", bytearray(), "", {}, []) for name in BODY_FIELDS)


def _comparable(key: str, value: object) -> str:
    """Return the value as a header would hold it. The case of ids and tokens matters."""
    if isinstance(value, (list, dict)):  # refused later; its text may be long, or too deep to be written
        return abbreviate(value)
    return str(value).lower() if key in ("start", "end") else str(value)


def _boolean(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()]
    raise invalid(f"{name} must be true or false, not {abbreviate(value)}")


def _step(value: object, name: str) -> int:
    number = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        number = int(value)
    if type(number) is not int or not 0 <= number <= _MAX_STEP:
        raise invalid(f"{name} must be the number of timesteps before this request, not {abbreviate(value)}")
    return number
