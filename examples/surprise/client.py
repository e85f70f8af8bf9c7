"""Request the surprise of a text from the served model. Standard library only.

python client.py "The value is a string."
cat /var/log/syslog | python client.py --above 4
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request

PALETTE = (None, "\033[33m", "\033[1;31m")
"""Colours of expected, unusual and surprising bytes."""


def score(url: str, text: bytes, timeout: float = 30) -> tuple[float, list[float]]:
    """Return the mean surprise and each byte's surprise in bits.

    Raises:
        ValueError: the server refused the text; the message is the server's.
    """
    request = urllib.request.Request(url, data=text, headers={"Content-Type": "text/plain; charset=utf-8"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as refused:
        raise ValueError(f"{refused.code}: {json.load(refused)['message']}") from refused
    return answer["mean_bits"], answer["bits"]


def level(bits: float) -> int:
    """Return 0 for an expected byte, 1 for an unusual one, 2 for a surprising one.

    >>> [level(bits) for bits in (0.3, 6.5, 11.0)]
    [0, 1, 2]
    """
    return (bits > 5) + (bits > 9)


def highlight(text: bytes, bits: list[float]) -> str:
    """The text for a terminal, with its surprising bytes in colour."""
    pieces = []
    for byte, amount in zip(text, bits, strict=True):
        shown = chr(byte) if 32 <= byte < 127 else "·"
        colour = PALETTE[level(amount)]
        pieces.append(f"{colour}{shown}\033[0m" if colour else shown)
    return "".join(pieces)


def report(text: bytes, url: str, above: float) -> None:
    """Print the score of one text if it is more than `above`, or the reason of its refusal."""
    try:
        mean, bits = score(url, text)
    except ValueError as refused:
        print(f"refused with {refused}", file=sys.stderr)
        return
    if mean > above:
        print(f"{mean:5.2f} bits per byte  {highlight(text, bits)}")


def main() -> None:
    """Score the texts of the command line, or every line of standard input."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("text", nargs="*", help="texts to score; none: the lines of standard input")
    arguments.add_argument("--url", default="http://127.0.0.1:8080/predictions/surprise")
    arguments.add_argument("--above", type=float, default=0, help="print only texts of more bits per byte than this")
    options = arguments.parse_args()
    for text in options.text or map(str.strip, sys.stdin):
        if text:
            report(text.encode(), options.url, options.above)


if __name__ == "__main__":
    main()
