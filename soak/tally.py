"""Answers counted while the load runs, and what must hold for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .standing import Standing

LEAST_BAD_PERCENT = 9.0
"""The least share of bad requests. Clients mean 10 %, and a short run ends within a client's ten."""
SHOWN = 20
"""The largest number of wrong answers of which a line is kept."""


@dataclass
class Tally:
    """Requests of all clients and their answers."""

    good_sent: int = 0
    good_right: int = 0
    """Good requests with status 200 and the model's own answer."""
    bad_sent: Counter[str] = field(default_factory=Counter)
    """Bad requests and hang-ups by kind."""
    bad_refused: Counter[str] = field(default_factory=Counter)
    """Bad requests with their documented refusal, and hang-ups, which get no answer, by kind."""
    sessions_begun: int = 0
    sessions_finished: int = 0
    """Sessions of which every chunk was answered right, up to the last."""
    failed: int = 0
    """Answers that were wrong or did not come."""
    wrong: list[str] = field(default_factory=list)
    """A line for each of the first of them."""

    def add_wrong(self, line: str) -> None:
        """Count an answer that is wrong or did not come, and keep its line if there are few."""
        self.failed += 1
        if len(self.wrong) < SHOWN:
            self.wrong.append(line)

    @property
    def sent(self) -> int:
        """The number of all requests."""
        return self.good_sent + self.bad_sent.total()

    @property
    def bad_percent(self) -> float:
        """The share of bad requests; not-a-number without a request."""
        return 100 * self.bad_sent.total() / self.sent if self.sent else float("nan")


def answer_standings(tally: Tally, kinds: Iterable[str]) -> list[Standing]:
    """The standings of answers; each of `kinds` must have been sent.

    >>> [one.reached for one in answer_standings(Tally(), ["not JSON"])]
    ['aim', 'missed', 'aim', 'missed', 'aim', 'missed', 'missed']
    """
    unsent = [kind for kind in kinds if not tally.bad_sent[kind]]
    return [
        _none("good requests without the right answer", tally.good_sent - tally.good_right),
        Standing("good requests", tally.good_sent, 1, 1),
        _none("sessions that were not answered to their end", tally.sessions_begun - tally.sessions_finished),
        Standing("sessions", tally.sessions_begun, 1, 1),
        _none("bad requests without their documented refusal", (tally.bad_sent - tally.bad_refused).total()),
        Standing("bad requests, percent of all", tally.bad_percent, LEAST_BAD_PERCENT, LEAST_BAD_PERCENT),
        _none("kinds of bad requests that were not sent", len(unsent)),
    ]


def _none(what: str, count: int) -> Standing:
    return Standing(what, count, 0, 0, "less")
