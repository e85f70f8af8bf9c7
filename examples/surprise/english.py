"""Real text that is on every machine: the English documentation behind Python's own `help()`."""

from __future__ import annotations

import random
from pydoc_data import topics

SEED = 0
HELD_OUT = 0.1
"""The share of the topics that are not used in training."""


def read_topics() -> list[bytes]:
    """Every topic as plain ASCII, always in the same order."""
    return [topics.topics[name].encode("ascii", "ignore").strip() + b"\n" for name in sorted(topics.topics)]


def split() -> tuple[bytes, bytes]:
    """The training text and the held-out text; every topic is in one of them as a whole."""
    pieces = read_topics()
    shuffled = random.Random(SEED).sample(pieces, len(pieces))
    cut = int(len(shuffled) * HELD_OUT)
    return b"".join(shuffled[cut:]), b"".join(shuffled[:cut])
