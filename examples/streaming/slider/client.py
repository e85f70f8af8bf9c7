"""Send samples to a served model over a stream that continues after any failure. It needs the package websockets.

python client.py 0.5 0.5 1 1 1
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterable, Iterator

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

STREAM = "ws://127.0.0.1:8080/models/slider/stream"
ID, START, STEP = (f"ts_request_sequence_{name}" for name in ("id", "start", "step"))


def levels(chunks: Iterable[list[list[float]]], url: str = STREAM) -> Iterator[list[list[float]]]:
    """Send chunks one at a time, and return the level after each sample. Each chunk is applied once."""
    session, step, waiting, left = secrets.token_urlsafe(18), 0, None, iter(chunks)
    while True:
        begin = f"{STEP}={step}" if step else f"{START}=true"
        try:
            with connect(f"{url}?{ID}={session}&{begin}") as stream:
                while (waiting := waiting or next(left, None)) is not None:
                    stream.send(json.dumps(waiting))
                    answer = json.loads(stream.recv())
                    if "code" in answer:
                        sys.exit(answer["message"])
                    step, waiting = answer[STEP], None
                    yield answer["level"]
                return
        except (ConnectionClosed, OSError):
            time.sleep(1)  # then the chunk that has no answer is sent again, with its step


if __name__ == "__main__":
    for level in levels([[float(sample)]] for sample in sys.argv[1:]):
        print(level)
