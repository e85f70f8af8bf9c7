"""Mutation of bytes that follow no format: flipped, inserted, removed, repeated, cut off."""

from __future__ import annotations

from random import Random


def mutate_octets(content: bytes, random: Random) -> bytes:
    """Return `content` with one change at a random place; bytes are added to empty content."""
    place = random.randint(0, len(content))
    end = min(len(content), place + random.choice((1, 1, 2, 4, 8, 64)))
    return random.choice((_flip, _insert, _remove, _repeat, _cut))(content, place, end, random)


def _flip(content: bytes, place: int, end: int, random: Random) -> bytes:
    changed = bytes(byte ^ 1 << random.randrange(8) for byte in content[place:end])
    return content[:place] + changed + content[end:]


def _insert(content: bytes, place: int, end: int, random: Random) -> bytes:
    return content[:place] + random.randbytes(random.randint(1, 8)) + content[place:]


def _remove(content: bytes, place: int, end: int, random: Random) -> bytes:
    return content[:place] + content[end:]


def _repeat(content: bytes, place: int, end: int, random: Random) -> bytes:
    return content[:end] + content[place:end] * random.randint(1, 3) + content[end:]


def _cut(content: bytes, place: int, end: int, random: Random) -> bytes:
    return content[:place]
