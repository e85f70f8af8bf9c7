"""Clients that do not wait: the connection is closed within a request, or before its answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import NamedTuple

from chaos.verdict import ID, START
from tools.bench.load import http_post

from .archives import STREAM, TAGGER
from .request import predictions

_SECONDS = 10.0
_A_BATCH = 0.003
"""Seconds after which a request is in the queue or is computed, and not yet answered."""


class HangUp(NamedTuple):
    """A request with a JSON body, and when its client closes the connection."""

    body: bytes
    path: str
    headers: Mapping[str, str]
    """Headers other than the content type."""
    sent: float
    """The share of the request's bytes that are sent."""
    wait_seconds: float
    """Seconds after the last sent byte."""


def _plain(sent: float, wait_seconds: float) -> HangUp:
    return HangUp(b"[1, 2, 3, 4, 5, 6, 7, 8]", predictions(TAGGER), {}, sent, wait_seconds)


def _start_of_session() -> HangUp:
    headers = {ID: f"soak-left-{secrets.token_hex(8)}", START: "true"}
    return HangUp(b"[1, 2, 3]", predictions(STREAM), headers, 1.0, _A_BATCH)


HANG_UPS: dict[str, Callable[[], HangUp]] = {
    "the client hangs up within its headers": lambda: _plain(0.4, 0.0),
    "the client hangs up within its body": lambda: _plain(0.95, 0.0),
    "the client hangs up after its request": lambda: _plain(1.0, 0.0),
    "the client hangs up while it is computed": lambda: _plain(1.0, _A_BATCH),
    "the client hangs up after the start of a session": _start_of_session,
}
"""A function for each kind of hang-up, by the kind's name."""


async def hang_up(port: int, kind: HangUp) -> None:
    """Send a part of the request over another connection, and close it.

    Raises:
        OSError: the server does not accept the connection, or has closed it.
        asyncio.TimeoutError: the server does not accept the connection in time.
    """
    _, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), _SECONDS)
    try:
        data = http_post(kind.path, kind.body, headers=kind.headers)
        writer.write(data[: round(len(data) * kind.sent)])
        await writer.drain()
        await asyncio.sleep(kind.wait_seconds)
    finally:
        writer.close()
