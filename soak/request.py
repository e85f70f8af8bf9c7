"""One HTTP request of the load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

JSON: Mapping[str, str] = MappingProxyType({"Content-Type": "application/json"})


class Request(NamedTuple):
    """A POST request."""

    path: str
    body: bytes
    headers: Mapping[str, str]


def json_request(model: str, value: object, headers: Mapping[str, str] | None = None) -> Request:
    """Make a request for predictions whose body is a JSON value.

    >>> json_request("tagger", [1, 2]).body
    b'[1, 2]'
    """
    return Request(predictions(model), json.dumps(value).encode(), {**JSON, **(headers or {})})


def predictions(model: str) -> str:
    """The address of a model.

    >>> predictions("tagger")
    '/predictions/tagger'
    """
    return f"/predictions/{model}"
