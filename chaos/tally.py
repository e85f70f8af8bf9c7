"""Results of a trial, counted while it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .verdict import Verdict


@dataclass
class Tally:
    """Results of all sessions of one trial."""

    answers: Counter[Verdict] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    """Requests that were sent again, by reason."""
    lost: list[str] = field(default_factory=list)
    """A line for each session that could not continue."""
    strange: list[str] = field(default_factory=list)
    """A line for each wrong answer."""
    worker_kills: int = 0
    server_kills: int = 0
    replayed: int = 0
    """Chunks that the servers had already applied, and answered from the stored answer."""
    finished: int = 0
    """Sessions that were sent to their end."""
    seconds: float = 0.0

    @property
    def given(self) -> int:
        """The number of answers."""
        return sum(self.answers.values())


def failures(tally: Tally, sessions: int, pieces: int, kills: int, servers: int) -> list[str]:
    """List the reasons why a trial of `sessions` sessions of `pieces` chunks each fails.

    At least `kills` kills of workers are required.

    >>> failures(Tally(), sessions=0, pieces=0, kills=2, servers=0)
    ['only 0 workers were killed, at least 2 should be']
    """
    found = [f"a session was lost: {line}" for line in tally.lost]
    found += [f"an answer is not right: {line}" for line in tally.strange]
    if not tally.lost and tally.finished != sessions:
        found.append(f"{tally.finished} of {sessions} sessions came to their end")
    if not tally.lost and tally.given != sessions * pieces:
        found.append(f"{tally.given} answers to {sessions * pieces} pieces")
    if tally.worker_kills < kills:
        found.append(f"only {tally.worker_kills} workers were killed, at least {kills} should be")
    if tally.server_kills < servers:
        found.append(f"only {tally.server_kills} servers were killed, {servers} should be")
    return found
