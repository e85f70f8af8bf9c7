"""Sessions that the clients send: the tokens of each, and the ends of its chunks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

LONGEST_PIECE = 8


@dataclass(frozen=True)
class Piece:
    """Some consecutive tokens of a session."""

    number: int
    begin: int
    """The number of tokens before the chunk."""
    tokens: tuple[int, ...]
    last: bool

    @property
    def end(self) -> int:
        """The number of tokens up to the end of the chunk."""
        return self.begin + len(self.tokens)


@dataclass(frozen=True)
class Script:
    """A session from its first chunk to its last.

    >>> [(piece.begin, piece.tokens, piece.last) for piece in Script("a", (7, 8, 9), (2, 3)).pieces()]
    [(0, (7, 8), False), (2, (9,), True)]
    """

    id: str
    tokens: tuple[int, ...]
    ends: tuple[int, ...]
    """The number of tokens up to the end of each chunk."""

    def pieces(self) -> Iterator[Piece]:
        """Yield the chunks in order."""
        begin = 0
        for number, end in enumerate(self.ends):
            yield Piece(number, begin, self.tokens[begin:end], end == len(self.tokens))
            begin = end


def draw_scripts(sessions: int, pieces: int, tokens: int, seed: int) -> list[Script]:
    """Draw sessions, each of `pieces` chunks of 1 to 8 tokens. Always the same for a seed."""
    choice = random.Random(seed)
    scripts = []
    for number in range(sessions):
        ends = tuple(accumulate(choice.randint(1, LONGEST_PIECE) for _ in range(pieces)))
        scripts.append(Script(f"chaos-{seed}-{number}", tuple(choice.choices(range(tokens), k=ends[-1])), ends))
    return scripts
