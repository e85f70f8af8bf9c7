"""Many open sessions of one server, and the same requests without a session."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from torchserve_process import TorchServe

from torchserve_neuron_lstm.sessions.settings import Limits
from torchserve_neuron_lstm.sessions.sqlite.store import SqliteStore

from ..load import Load, http_post, load, send_each
from .archive import NAME

TOKENS = 10_000
STEP, ALONE = "a step of a session", "the same by itself"
_ID, _START, _END = (f"ts_request_sequence_{word}" for word in ("id", "start", "end"))
_LIMITS = Limits(sessions=1_000_000, bytes=2**40, idle_seconds=3600.0)


@dataclass(frozen=True)
class Served:
    """Results of the clients."""

    sessions: int
    bytes_stored: int
    """Bytes of all records."""
    bytes_on_disk: int
    """Bytes of the store's files."""
    rounds: dict[str, list[Load]] = field(default_factory=dict)

    def rate(self, name: str) -> float:
        """Requests per second: the median of the rounds."""
        return median(len(done.milliseconds) / done.seconds for done in self.rounds[name])

    def percentile(self, name: str, percent: int) -> float:
        """Milliseconds within which `percent` % of the answers arrived: the median of the rounds."""
        return median(quantiles(done.milliseconds, n=100)[percent - 1] for done in self.rounds[name])

    @property
    def ratio(self) -> float:
        """The ratio of the throughput with sessions to that without: the median over pairs of rounds."""
        pairs = zip(self.rounds[STEP], self.rounds[ALONE], strict=True)
        return median(_rate(step) / _rate(alone) for step, alone in pairs)


def _rate(done: Load) -> float:
    return len(done.milliseconds) / done.seconds


def requests(sessions: int, tokens: int) -> tuple[list[bytes], dict[str, list[bytes]]]:
    """The requests that begin each session, and chunks of `tokens` tokens, by kind of request.

    Each session has one chunk, which is sent both within the session and without a session.
    """
    path = f"/predictions/{NAME}"
    choice = random.Random(0)
    names = [f"session-{number}" for number in range(sessions)]
    bodies = [json.dumps([choice.randrange(TOKENS) for _ in range(tokens)]).encode() for _ in names]
    pairs = list(zip(names, bodies, strict=True))
    begin = [http_post(path, body, headers={_ID: name, _START: "true"}) for name, body in pairs]
    alone = {_START: "true", _END: "true"}  # begins and ends with one chunk: no state is kept
    return begin, {
        STEP: [http_post(path, body, headers={_ID: name, _START: "false", _END: "false"}) for name, body in pairs],
        ALONE: [http_post(path, body, headers={_ID: name, **alone}) for name, body in pairs],
    }


def measure_served(
    server: TorchServe, directory: Path, sessions: int, tokens: int, connections: int, rounds: int, seconds: float
) -> Served:
    """Open the sessions, then load the server with chunks of `tokens` tokens, of both kinds in turns.

    Each kind goes first in every other round.

    Raises:
        Refused: an answer was not 200.
    """
    begin, asked = requests(sessions, tokens)
    send_each(server.inference, begin, connections)
    found = Served(sessions, *_stored(directory), {name: [] for name in asked})
    for name in asked:
        load(server.inference, asked[name], connections, seconds)
    for number in range(rounds):
        for name in list(asked) if number % 2 == 0 else list(asked)[::-1]:
            random.seed(number)  # the same sessions in the same order for both
            found.rounds[name].append(load(server.inference, asked[name], connections, seconds))
    return found


def _stored(directory: Path) -> tuple[int, int]:
    store = SqliteStore(directory, NAME, _LIMITS)
    try:
        return store.totals().bytes, sum(_sizes(list(directory.glob(f"{NAME}.sessions*"))))
    finally:
        store.close()


def _sizes(files: Sequence[Path]) -> list[int]:
    return [file.stat().st_size for file in files if not file.name.endswith("-shm")]
