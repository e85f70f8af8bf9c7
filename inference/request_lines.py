"""Request bodies as the lines of a file: each is answered by one line, as a server answers the body."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from ..handlers.formats.raw_request import RawRequest
from ..handlers.responses import JSON, JSON_LENGTH_HEADER, RawResponse, http_headers

WINDOW_LINES = 1024
"""Lines that are planned together: enough for good plans, few enough for quick ones."""
_FIRST_LINES = 8
_WINDOW_BYTES = 1 << 22
"""Bytes of the lines of a window."""
_ANSWER_BYTES = 1 << 25
"""Bytes of the answers of a window, by those of the one before it."""

Handle = Callable[[Sequence[RawRequest]], Sequence[RawResponse]]
"""The service, for a window of requests."""


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
        yield line.removesuffix(b"\n").removesuffix(b"\r") if piece is line else line[: most + 1]


def answer_lines(handle: Handle, lines: Iterator[bytes]) -> Iterator[AnswerLine]:
    """Yield the answer to each line, in order.

    A line that is refused is answered by an object with its number, from 1 on, and with `code`, `type` and `message`.
    Windows grow from a few lines to `WINDOW_LINES`, as far as the answers are small.
    """
    number, most = 1, _FIRST_LINES
    while window := _take(lines, most):
        responses = handle([RawRequest({"body": line}, {"url_path": ""}) for line in window])
        for response in responses:
            yield _answer(response, number)
            number += 1
        size = max(len(response.body) for response in responses)
        most = max(1, min(WINDOW_LINES, 2 * most, _ANSWER_BYTES // max(1, size)))


def _take(lines: Iterator[bytes], most: int) -> list[bytes]:
    window: list[bytes] = []
    size = 0
    while len(window) < most and size < _WINDOW_BYTES and (line := next(lines, None)) is not None:
        window.append(line)
        size += len(line)
    return window


def _answer(response: RawResponse, number: int) -> AnswerLine:
    if response.status != 200:
        return AnswerLine(_dumps({"line": number, **json.loads(response.body)}), is_refusal=True)
    if JSON_LENGTH_HEADER in http_headers(response)[1]:
        return _refused(number, 400, "InvalidInput", "a line cannot hold bytes: leave out binary_data and its like")
    if response.content_type == JSON and b"\n" not in response.body:
        return AnswerLine(response.body, is_refusal=False)
    try:  # what a user's codec made
        text = response.body.decode("utf-8")
        return AnswerLine(_dumps(json.loads(text) if response.content_type == JSON else text), is_refusal=False)
    except ValueError:
        message = f"the model's codec answers with {response.content_type}, which is not text: a line cannot hold it"
        return _refused(number, 500, "InternalError", message)


def _refused(number: int, code: int, kind: str, message: str) -> AnswerLine:
    return AnswerLine(_dumps({"line": number, "code": code, "type": kind, "message": message}), is_refusal=True)


def _dumps(value: object) -> bytes:
    return json.dumps(value).encode("ascii")
