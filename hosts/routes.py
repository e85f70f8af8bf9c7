"""Routes of the REST API, as TorchServe and the Open Inference Protocol have them."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Action = Literal["infer", "model metadata", "model ready", "server metadata", "live", "ready", "ping"]


class Route(NamedTuple):
    """The action that a request asks for, and the model that it names."""

    action: Action
    model: str = ""
    version: str = ""


class NoRouteError(Exception):
    """No route has this path, or none has it for this method; `status` is 404 or 405."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


_MODEL = r"(?P<model>[^/:]+)"
_PATTERNS: tuple[tuple[str, str, Action], ...] = (
    ("POST PUT", rf"/predictions/{_MODEL}(?:/(?P<version>[^/]+))?", "infer"),
    ("POST", rf"/v1/models/{_MODEL}:predict", "infer"),
    ("POST", rf"/v2/models/{_MODEL}(?:/versions/(?P<version>[^/]+))?/infer", "infer"),
    ("GET", rf"/v1/models/{_MODEL}", "model ready"),
    ("GET", rf"/v2/models/{_MODEL}(?:/versions/(?P<version>[^/]+))?/ready", "model ready"),
    ("GET", rf"/v2/models/{_MODEL}(?:/versions/(?P<version>[^/]+))?", "model metadata"),
    ("GET", r"/v2/?", "server metadata"),
    ("GET", r"/v2/health/live", "live"),
    ("GET", r"/v2/health/ready", "ready"),
    ("GET", r"/ping", "ping"),
)
_ROUTES = tuple((frozenset(methods.split()), re.compile(pattern), action) for methods, pattern, action in _PATTERNS)


def find_route(method: str, path: str) -> Route:
    """Return the route of a request.

    >>> find_route("POST", "/predictions/tagger/1.0")
    Route(action='infer', model='tagger', version='1.0')
    >>> find_route("GET", "/v2/models/tagger/ready").action
    'model ready'

    Raises:
        NoRouteError: there is none.
    """
    is_known = False
    for methods, pattern, action in _ROUTES:
        if (found := pattern.fullmatch(path)) is not None:
            is_known = True
            if method in methods:
                named = found.groupdict()
                return Route(action, named.get("model") or "", named.get("version") or "")
    raise NoRouteError(405 if is_known else 404)
