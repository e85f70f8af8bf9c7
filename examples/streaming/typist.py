"""Type a text into the served model, chunk by chunk, and plot its surprise. Standard library only.

python typist.py "The value is a string. asdkfj q;weoriu"
python typist.py --chunk 8 "The value is a string."
"""

from __future__ import annotations

import argparse
import http.client
import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

PALETTE = ("", "\033[33m", "\033[1;31m")
"""Colours of expected, unusual and surprising bytes."""
BITS_A_BAR = 0.5
TRIES, PAUSE_SECONDS = 20, 0.5


class Refused(Exception):
    """The server refuses the chunk, and would refuse it again."""


@dataclass
class Session:
    """A text that is sent to the model. Each chunk is applied once, even if requests or answers are lost.

    The id is made here, so that even the first chunk can be sent again without beginning a second session. It cannot be
    guessed: anyone who has it can use the session.
    """

    url: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    steps: int = 0
    """The number of applied bytes."""

    def send(self, chunk: bytes, *, end: bool = False) -> list[float]:
        """Send the next chunk. Returns the surprise of each of its bytes in bits.

        Raises:
            Refused: the server says why.
        """
        bits: list[float] = self._ask(chunk, end)["bits"]
        self.steps += len(chunk)
        return bits

    def end(self) -> None:
        """Remove the session from the server. Sessions that are not ended expire after a while."""
        if self.steps:
            self._ask(b"", end=True)

    def _ask(self, body: bytes, end: bool) -> dict[str, list[float]]:
        """Send a chunk with its step number, so that it can be sent again: the answer is the same."""
        headers = {
            "Content-Type": "text/plain",
            "ts_request_sequence_id": self.id,
            "ts_request_sequence_step": str(self.steps),
            "ts_request_sequence_start": str(self.steps == 0).lower(),
            "ts_request_sequence_end": str(end).lower(),
        }
        return _answer(urllib.request.Request(self.url, data=body, headers=headers), TRIES)


def _answer(request: urllib.request.Request, tries: int) -> dict[str, list[float]]:
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            answer: dict[str, list[float]] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        if error.code < 500:
            raise Refused(f"{error.code}: {json.load(error)['message']}") from error
        failed: Exception = error
    except (OSError, http.client.HTTPException) as error:
        failed = error
    if tries == 1:
        raise Refused(f"no answer after {TRIES} tries: {failed}")
    time.sleep(PAUSE_SECONDS)
    return _answer(request, tries - 1)


def chunks(text: bytes, size: int) -> Iterator[bytes]:
    """Split a text into chunks, in order.

    >>> list(chunks(b"Hello", 2))
    [b'He', b'll', b'o']
    """
    return (text[begin : begin + size] for begin in range(0, len(text), size))


def bar(byte: int, bits: float, *, coloured: bool = True) -> str:
    """Draw one byte's line of the plot.

    >>> bar(ord("T"), 4.2, coloured=False)
    'T   4.2 ━━━━━━━━'
    """
    shown = chr(byte) if 32 < byte < 127 else "·"
    colour = PALETTE[(bits > 5) + (bits > 9)] if coloured else ""
    line = f"{shown} {bits:5.1f} {'━' * round(bits / BITS_A_BAR)}"
    return f"{colour}{line}\033[0m" if colour else line


def type_text(session: Session, text: bytes, size: int = 1, *, coloured: bool = True) -> list[float]:
    """Send a text chunk by chunk and print the plot of each answer. Returns all bits.

    Raises:
        Refused: the server says why.
    """
    bits = []
    for chunk in chunks(text, size):
        answered = session.send(chunk)
        bits += answered
        for byte, amount in zip(chunk, answered, strict=True):
            print(bar(byte, amount, coloured=coloured), flush=True)
    return bits


def main() -> None:
    """Type the text of the command line."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("text")
    arguments.add_argument("--url", default="http://127.0.0.1:8080/predictions/typing")
    arguments.add_argument("--chunk", type=int, default=1, metavar="BYTES", help="bytes of a request (%(default)s)")
    options = arguments.parse_args()
    text, session = options.text.encode(), Session(options.url)
    bits = type_text(session, text, max(1, options.chunk))
    session.end()
    print(f"{sum(bits):.1f} bits for {len(text)} bytes")


if __name__ == "__main__":
    main()
