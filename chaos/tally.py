"""Results of a trial, counted while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
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
    disturbances: Counter[str] = field(default_factory=Counter)
    """Disturbances that were made, by name."""
    states_gone: int = 0
    """Times at which the states of all sessions begun before were taken away."""
    begun_again: int = 0
    """Sessions whose client was told that its state is gone, and that were begun again."""
    seconds: float = 0.0

    @property
    def given(self) -> int:
        """The number of answers."""
        return sum(self.answers.values())


def failures(
    tally: Tally, sessions: int, chunks: int, kills: int, servers: int, disturbances: Collection[str] = ()
) -> list[str]:
    """List the reasons why a trial of `sessions` sessions of `chunks` chunks each fails.

    At least `kills` kills of workers are required, and each of `disturbances` once. A session may be begun again where
    the file of sessions was truncated.

    >>> failures(Tally(), sessions=0, chunks=0, kills=2, servers=0)
    ['only 0 workers were killed, at least 2 should be']
    """
    found = [f"a session was lost: {line}" for line in tally.lost]
    found += [f"an answer is not right: {line}" for line in tally.strange]
    if not tally.lost and tally.finished != sessions:
        found.append(f"{tally.finished} of {sessions} sessions came to their end")
    if not tally.lost and (
        tally.given < sessions * chunks or (tally.given > sessions * chunks and not tally.begun_again)
    ):
        found.append(f"{tally.given} answers to {sessions * chunks} chunks")
    found += [f"there was no disturbance: {name}" for name in disturbances if not tally.disturbances[name]]
    if tally.worker_kills < kills:
        found.append(f"only {tally.worker_kills} workers were killed, at least {kills} should be")
    if tally.server_kills < servers:
        found.append(f"only {tally.server_kills} servers were killed, {servers} should be")
    return found
