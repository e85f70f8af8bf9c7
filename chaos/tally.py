"""What came of it, counted while it happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .verdict import Verdict


@dataclass
class Tally:
    """Of all sessions of one trial."""

    answers: Counter[Verdict] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    """Pieces that were sent again, by why."""
    lost: list[str] = field(default_factory=list)
    """A line for each session that could not go on."""
    strange: list[str] = field(default_factory=list)
    """A line for each answer that is not right."""
    worker_kills: int = 0
    server_kills: int = 0
    replayed: int = 0
    """Pieces that the servers say they had applied before, and answered as before."""
    finished: int = 0
    """Sessions that came to their end."""
    seconds: float = 0.0

    @property
    def given(self) -> int:
        """Answers."""
        return sum(self.answers.values())


def failures(tally: Tally, sessions: int, pieces: int, kills: int, servers: int) -> list[str]:
    """Why a trial of so many sessions and pieces each did not show what it should; at least so many kills are needed.

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
