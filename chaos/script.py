"""Sessions that the clients send: the tokens of each, and the ends of its chunks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

LONGEST_CHUNK = 8


@dataclass(frozen=True)
class Chunk:
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

    >>> [(chunk.begin, chunk.tokens, chunk.last) for chunk in Script("a", (7, 8, 9), (2, 3)).chunks()]
    [(0, (7, 8), False), (2, (9,), True)]
    """

    id: str
    tokens: tuple[int, ...]
    ends: tuple[int, ...]
    """The number of tokens up to the end of each chunk."""

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks in order."""
        begin = 0
        for number, end in enumerate(self.ends):
            yield Chunk(number, begin, self.tokens[begin:end], end == len(self.tokens))
            begin = end


def draw_scripts(sessions: int, chunks: int, tokens: int, seed: int) -> list[Script]:
    """Draw sessions, each of `chunks` chunks of 1 to 8 tokens. Always the same for a seed."""
    choice = random.Random(seed)
    scripts = []
    for number in range(sessions):
        ends = tuple(accumulate(choice.randint(1, LONGEST_CHUNK) for _ in range(chunks)))
        scripts.append(Script(f"chaos-{seed}-{number}", tuple(choice.choices(range(tokens), k=ends[-1])), ends))
    return scripts
