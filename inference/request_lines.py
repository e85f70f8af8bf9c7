"""Request bodies as the lines of a file: each is answered by one line, as a server answers the body."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from ..handlers.formats.request import TorchServeRequest
from ..handlers.responses import JSON, RawResponse
from ..handlers.service import Service

WINDOW_LINES = 1024
"""Lines that are planned together: enough for good plans, few enough for quick ones and little memory."""
WINDOW_BYTES = 1 << 22


class AnswerLine(NamedTuple):
    """The answer to one line, as JSON without a line break."""

    text: bytes
    is_refusal: bool


def read_lines(file: BinaryIO, most: int) -> Iterator[bytes]:
    r"""Yield the lines without their ends; of a line with more than `most` bytes, one byte more than these.

    >>> import io
    >>> list(read_lines(io.BytesIO(b"ab\n\nabcdef\nc"), most=3))
    [b'ab', b'', b'abcd', b'c']
    """
    while piece := file.readline(most + 2):
        line = piece
        while len(piece) == most + 2 and not piece.endswith(b"\n"):  # the rest of it is not kept
            piece = file.readline(most + 2)
        yield line.rstrip(b"\r\n")[: most + 1]


def answer_lines(service: Service, lines: Iterable[bytes]) -> Iterator[AnswerLine]:
    """Yield the answer to each line, in order.

    A line that is refused is answered by an object with its number, from 1 on, and with `code`, `type` and `message`.
    """
    number = 1
    for window in _windows(lines):
        responses = service.handle([TorchServeRequest({"body": line}) for line in window])
        for response in responses:
            yield _answer(response, number)
            number += 1


def _windows(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    window: list[bytes] = []
    size = 0
    for line in lines:
        window.append(line)
        size += len(line)
        if len(window) == WINDOW_LINES or size >= WINDOW_BYTES:
            yield window
            window, size = [], 0
    if window:
        yield window


def _answer(response: RawResponse, number: int) -> AnswerLine:
    if response.status != 200:
        return AnswerLine(_dumps({"line": number, **json.loads(response.body)}), is_refusal=True)
    if response.content_type == JSON and b"\n" not in response.body:
        return AnswerLine(response.body, is_refusal=False)
    try:  # what a user's codec made
        text = response.body.decode("utf-8")
        return AnswerLine(_dumps(json.loads(text) if response.content_type == JSON else text), is_refusal=False)
    except ValueError:
        message = f"the model's codec answers with {response.content_type}, which is not text: a line cannot hold it"
        body = {"line": number, "code": 500, "type": "InternalError", "message": message}
        return AnswerLine(_dumps(body), is_refusal=True)


def _dumps(value: object) -> bytes:
    return json.dumps(value).encode("ascii")
