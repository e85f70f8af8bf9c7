"""Mutation of JSON text: one part of a value is replaced, removed, repeated, renamed or nested.

A replacement may be text that is no JSON, or that readers of JSON treat differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

_DEEPEST = 60
"""Levels of lists and objects; deeper text is left to the mutation of bytes."""
Place: TypeAlias = tuple[Any, Any]
"""A list or an object, and the index or key of a part of it."""


class RawText(str):
    """Text that is written as it is, in the place of a JSON value."""

    __slots__ = ()


AWKWARD = tuple(
    map(
        RawText,
        (
            *(
                "0",
                "-1",
                "1",
                "2",
                "3",
                "1.5",
                "-0.0",
                "1e2",
                "1e400",
                "-1e400",
                "1e-400",
                "NaN",
                "Infinity",
                "-Infinity",
            ),
            *("65536", "1099511627775", "1099511627776", "9007199254740993", "9223372036854775807"),
            *(
                "9223372036854775808",
                "18446744073709551616",
                "3.5e38",
                "1e308",
                "1" * 400,
                "1" * 5000,
                "0." + "3" * 400,
            ),
            *(
                "true",
                "false",
                "null",
                "[]",
                "{}",
                "[[]]",
                '""',
                '"a"',
                '"time"',
                '"batch"',
                '"inf"',
                '"1"',
                "01",
                "+1",
            ),
            *(
                '"\\ud800"',
                '"\\ud83d\\ude00"',
                '"\\u0000"',
                '"\u00e9"',
                '"' + "x" * 600 + '"',
                '"' + "\\u0001" * 512 + '"',
            ),
            *("[549755813888, 549755813888]", "[0, 549755813888, 549755813888]", "[1, 2, 3]", "[[1, 2], [3]]"),
        ),
    )
)
"""JSON values at the bounds of what is accepted, and texts that are none."""
DEPTHS = (1, 2, 5, 50, 300, 600, 5000)


def mutate_json(content: bytes, words: Sequence[str], random: Random) -> bytes | None:
    """Return JSON text with up to three parts changed; None if `content` is not JSON, or too deep.

    `words` are strings that mean something where the text is read: keys, names and choices.
    """
    try:
        root: list[Any] = [json.loads(content)]
    except (ValueError, RecursionError):
        return None
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = _places(root)
        if places is None:
            return None
        if places:
            random.choice(_CHANGES)(random.choice(places), words, random)
    return ",".join(map(json_text, root)).encode("utf-8", "surrogatepass")


def _places(root: list[Any]) -> list[Place] | None:
    """Return the places of all parts; None if they are nested too deep."""
    found: list[Place] = []
    level: list[Any] = [root]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for whole in level:
            keys = range(len(whole)) if isinstance(whole, list) else list(whole)
            found += [(whole, key) for key in keys]
            inner += [whole[key] for key in keys if isinstance(whole[key], (list, dict))]
        if not inner:
            return found
        level = inner
    return None


def _replace(place: Place, words: Sequence[str], random: Random) -> None:
    whole, key = place
    whole[key] = random.choice(AWKWARD) if random.random() < 0.6 else random.choice(words)


def _change_number(place: Place, words: Sequence[str], random: Random) -> None:
    whole, key = place
    value = whole[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e18:
        _replace(place, words, random)
        return
    changed = random.choice((value + 1, value - 1, -value, value * 2, value + 0.5, float(value)))
    whole[key] = int(changed) if isinstance(value, int) and random.random() < 0.5 else changed


def _copy_from_elsewhere(place: Place, words: Sequence[str], random: Random) -> None:
    whole, key = place
    source = random.choice(list(whole.values()) if isinstance(whole, dict) else whole)
    # By its text: a value that held itself could not be written.
    whole[key] = RawText(json_text(source))


def _remove(place: Place, words: Sequence[str], random: Random) -> None:
    whole, key = place
    del whole[key]


def _insert(place: Place, words: Sequence[str], random: Random) -> None:
    whole, key = place
    if isinstance(whole, dict):
        whole[random.choice(words)] = random.choice(AWKWARD)
    else:
        whole.insert(key, random.choice(AWKWARD))


def _repeat(place: Place, words: Sequence[str], random: Random) -> None:
    whole, key = place
    if isinstance(whole, list):
        whole[key:key] = [RawText(json_text(whole[key]))] * random.choice((1, 2, 8, 70))
    else:  # a key that is given twice
        whole[key] = RawText(f"{json_text(whole[key])},{json.dumps(key)}:{json_text(whole[key])}")


def _rename(place: Place, words: Sequence[str], random: Random) -> None:
    whole, key = place
    if isinstance(whole, dict):
        whole[random.choice((random.choice(words), key.upper(), key.replace("_", "-"), ""))] = whole.pop(key)
    else:
        _replace(place, words, random)


def _nest(place: Place, words: Sequence[str], random: Random) -> None:
    whole, key = place
    # Near the interpreter's limit of recursion one reader fails, and another one does not.
    depth = random.choice((*DEPTHS, *[random.randint(950, 1000)] * 4))
    inner = random.choice((json_text(whole[key]), ""))
    whole[key] = RawText(
        "[" * depth + inner + "]" * depth if random.random() < 0.8 else '{"a":' * depth + (inner or "1") + "}" * depth
    )


_CHANGES: tuple[Callable[[Place, Sequence[str], Random], None], ...] = (
    _replace, _replace, _change_number, _copy_from_elsewhere, _remove, _insert, _repeat, _rename, _nest,
)  # fmt: skip


def json_text(value: Any) -> str:
    """Write a value, with its raw texts as they are."""
    if isinstance(value, RawText):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{json_text(part)}" for key, part in value.items()) + "}"
    return "[" + ",".join(map(json_text, value)) + "]" if isinstance(value, list) else json.dumps(value)
