"""Constructor arguments by dotted names, as they are given on a command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import PackagingError


def nested(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of which names such as `opt.hidden` are values of a mapping `opt`.

    >>> nested({"opt.hidden": 8, "opt.net.layers": 2, "classes": 3})
    {'opt': {'hidden': 8, 'net': {'layers': 2}}, 'classes': 3}

    Raises:
        PackagingError: an argument is given both as a value and as a mapping.
    """
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        *path, last = name.split(".")
        owner = found
        for part in path:
            owner = owner.setdefault(part, {})
            if not isinstance(owner, dict):
                raise PackagingError(f"--args {name}: {part} is given as {owner!r} too: give one of them")
        owner[last] = value
    return found
