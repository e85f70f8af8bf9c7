"""Which session a request belongs to: from headers, from fields of a form or of gRPC, or from the JSON body itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...sessions.settings import SessionFields
from ..formats.json_formats import is_npy, parse_json_fast
from ..formats.request import BODY_FIELDS, TorchServeRequest
from ..responses import RequestError, abbreviate, invalid

_V2_PARAMETERS = {"sequence_id": "id", "sequence_start": "start", "sequence_end": "end", "sequence_step": "step"}
"""What an Open Inference Protocol client may write in `parameters`, beside the names of the settings."""
_TRUTHS = {"true": True, "1": True, "false": False, "0": False, "": False}
_LARGEST_STEP = 2**63 - 1


class SessionFieldValues(NamedTuple):
    """What a request says of its session."""

    id: str | None
    start: bool
    end: bool
    step: int | None
    """Timesteps that came before this piece."""
    token: str | None


def read_session_fields(
    raw: TorchServeRequest, names: SessionFields, *, json_body: bool
) -> tuple[SessionFieldValues, TorchServeRequest]:
    """What `raw` says of its session, and the request without it.

    Names are compared without case, and `-` counts as `_`: proxies change the one and drop the other. A JSON body is
    looked into where `json_body` says that it is one of ours.

    Raises:
        RequestError: 400, a field is not what it must be, or two places say different things.
    """
    keys = {_plain(getattr(names, key)): key for key in SessionFieldValues._fields}
    found: dict[str, object] = {}
    for name, value in _outside_the_body(raw):
        if (key := keys.get(_plain(name))) is not None:
            _add(found, key, name, value)
    rest = raw
    if json_body:
        said, rest = _in_the_body(raw, keys)
        for name, key, value in said:
            _add(found, key, name, value)
    return _typed(found, names), rest


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _outside_the_body(raw: TorchServeRequest) -> Iterator[tuple[str, object]]:
    for name, value in raw.headers.items():
        if isinstance(value, str):
            yield name, value
    if isinstance(raw.row, Mapping):
        for name, value in raw.row.items():
            if isinstance(name, str) and name not in BODY_FIELDS:
                yield name, value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else value


def _in_the_body(
    raw: TorchServeRequest, keys: Mapping[str, str]
) -> tuple[list[tuple[str, str, object]], TorchServeRequest]:
    """(name, key, value) of each field in a JSON object, and the request with its body read and without them."""
    if not has_body(raw) or is_npy(body := raw.body()):
        return [], raw
    value = parse_json_fast(body)
    if not isinstance(value, dict):
        return [], raw
    said = [(name, keys[_plain(name)], value[name]) for name in value if _plain(name) in keys]
    parameters = value.get("parameters")
    if isinstance(parameters, Mapping):
        known = {**keys, **_V2_PARAMETERS}
        said += [(name, known[_plain(name)], parameters[name]) for name in parameters if _plain(name) in known]
    rest = {name: part for name, part in value.items() if _plain(name) not in keys}
    field = next((name for name in BODY_FIELDS if isinstance(raw.row, Mapping) and name in raw.row), BODY_FIELDS[0])
    return said, TorchServeRequest({field: rest}, raw.headers)


def has_body(raw: TorchServeRequest) -> bool:
    """Whether there is anything in it but what it says of its session."""
    if not isinstance(raw.row, Mapping):
        return raw.row not in (None, b"", "")
    return any(raw.row.get(name) not in (None, b"", bytearray(), "", {}, []) for name in BODY_FIELDS)


def _add(found: dict[str, object], key: str, name: str, value: object) -> None:
    if value is None:
        return
    if key in found and _compared(key, found[key]) != _compared(key, value):
        raise invalid(f"{abbreviate(name)} is said twice, with different values")
    found[key] = value


def _compared(key: str, value: object) -> str:
    """As a header would say it. Of ids and tokens every letter counts."""
    return str(value).lower() if key in ("start", "end") else str(value)


def _typed(found: Mapping[str, object], names: SessionFields) -> SessionFieldValues:
    for key in ("id", "token"):
        if key in found and not isinstance(found[key], str):
            raise invalid(f"{getattr(names, key)} must be a text, not {abbreviate(found[key])}")
    token = found.get("token")
    return SessionFieldValues(
        id=str(found["id"]) if found.get("id") else None,
        start=_truth(found.get("start", False), names.start),
        end=_truth(found.get("end", False), names.end),
        step=_step(found["step"], names.step) if "step" in found else None,
        token=token if isinstance(token, str) and token else None,
    )


def _truth(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUTHS:
        return _TRUTHS[value.strip().lower()]
    raise invalid(f"{name} must be true or false, not {abbreviate(value)}")


def _step(value: object, name: str) -> int:
    number = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        number = int(value)
    if type(number) is not int or not 0 <= number <= _LARGEST_STEP:
        raise invalid(f"{name} must be the number of timesteps that came before this piece, not {abbreviate(value)}")
    return number


def invalid_session_id(error: ValueError, name: str) -> RequestError:
    """What is said of an id that cannot be one."""
    return RequestError(400, "InvalidSessionId", f"{name}: {error}")
