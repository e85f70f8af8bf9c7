"""HTTP requests to a server on this machine, over kept connections like those of real clients."""

import http.client
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch

SECONDS = 60
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header values by their names in lower case."""

    @property
    def json(self) -> Any:
        """The body as JSON; any other body is an error."""
        return json.loads(self.body)


class Connection:
    """One kept connection. TorchServe closes it after every refusal; the next request opens another."""

    def __init__(self, port: int, seconds: float = SECONDS) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def close(self) -> None:
        self._http.close()

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        return self._send("POST", path, body, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self._send("GET", path, None, headers)

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> Reply:
        self._http.request(method, path, body, dict(headers or {}))
        response = self._http.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        reply = Reply(response.status, headers.get("content-type", ""), response.read(), headers)
        if reply.status >= 400:
            self._http.close()
        return reply


def post(
    port: int, path: str, body: bytes, headers: Mapping[str, str] | None = None, seconds: float = SECONDS
) -> Reply:
    """Send one request over a connection of its own."""
    with closing(Connection(port, seconds)) as connection:
        return connection.post(path, body, headers)


def get(port: int, path: str, headers: Mapping[str, str] | None = None, seconds: float = SECONDS) -> Reply:
    """Send one request without a body over a connection of its own."""
    with closing(Connection(port, seconds)) as connection:
        return connection.get(path, headers)


def post_json(port: int, path: str, value: object) -> Reply:
    """Send one JSON request over a connection of its own."""
    return post(port, path, json.dumps(value).encode(), JSON)


def assert_close(answer: object, expected: torch.Tensor) -> None:
    """Compare nested lists of an answer with the eager model's tensor, by shape and default tolerance."""
    torch.testing.assert_close(torch.tensor(answer, dtype=expected.dtype), expected, atol=1e-5, rtol=1e-5)


def assert_refused(reply: Reply, *statuses: int) -> dict[str, Any]:
    """Check that a refusal has one of these statuses, also in its body, with a message for people."""
    assert reply.status in statuses, reply.body[:300]
    refusal: dict[str, Any] = reply.json
    assert set(refusal) == {"code", "type", "message"}
    assert refusal["code"] == reply.status
    assert refusal["message"].strip()
    return refusal
