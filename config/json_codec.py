"""Reading variants.json value by value: each is asked for by type, and what is wrong is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

FILE_NAME = "variants.json"
REPACKAGE = "package the model again"

ValueT = TypeVar("ValueT")

_KINDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class ManifestError(RuntimeError):
    """An archive that must not be served: says which file, what is wrong with it, and what to do.

    A RuntimeError, because TorchServe reports no other kind while it loads a model.
    """


@dataclass(frozen=True)
class JsonReader:
    """A JSON object whose values are asked for by type; a value of another type is refused by name."""

    values: Any
    at: str
    """Its path in the file, with a dot at the end; "" for the whole."""

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            raise invalid_value(self.at.rstrip(".") or "the whole", "an object", self.values)

    def get_any(self, key: str) -> Any:
        """The value of a key, whatever it is."""
        if key not in self.values:
            raise ManifestError(f"{FILE_NAME}: {self.at}{key} is missing: {REPACKAGE}")
        return self.values[key]

    def get(self, key: str, kind: type[ValueT]) -> ValueT:
        """A value of one type."""
        value = self.get_any(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise invalid_value(f"{self.at}{key}", _KINDS[kind], value)
        return value

    def text(self, key: str) -> str:
        """A text."""
        return self.get(key, str)

    def whole(self, key: str) -> int:
        """A whole number."""
        return self.get(key, int)

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.get(key, int if type(self.values.get(key)) is int else float)
        if abs(value) == inf:  # 1e999 is JSON
            raise invalid_value(f"{self.at}{key}", "a finite number", value)
        return value

    def one_of(self, key: str, allowed: tuple[ValueT, ...]) -> ValueT:
        """One of the texts that are allowed."""
        value: Any = self.text(key)
        if value not in allowed:
            raise invalid_value(f"{self.at}{key}", " or ".join(map(str, allowed)), value)
        return cast(ValueT, value)

    def path(self, key: str) -> str:
        """A path below the archive's root."""
        return relative_path(self.text(key), f"{self.at}{key}")

    def optional(self, key: str, read: Callable[[str], ValueT]) -> ValueT | None:
        """null, or what `read` makes of the key."""
        return None if key in self.values and self.values[key] is None else read(key)

    def texts(self, key: str) -> dict[str, str]:
        """An object whose values are texts."""
        inner = self.inner(key)
        return {name: inner.text(name) for name in inner.values}

    def inner(self, key: str) -> JsonReader:
        """An object within this one."""
        return JsonReader(self.get(key, dict), f"{self.at}{key}.")

    def each(self, key: str) -> Iterator[JsonReader]:
        """The objects of a list."""
        for index, value in enumerate(self.get(key, list)):
            yield JsonReader(value, f"{self.at}{key}[{index}].")


def relative_path(name: str, where: str) -> str:
    """A path that stays below the archive's root, as it is.

    >>> relative_path("programs/eager/any", "directory")
    'programs/eager/any'
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == "." or set(name) & set("\\:\0"):
        raise invalid_value(where, "a path below the archive's root", name)
    return name


def invalid_value(where: str, expected: str, got: Any) -> ManifestError:
    """The refusal of one value; `where` is its path in the file."""
    return ManifestError(f"{FILE_NAME}: {where}: expected {expected}, got {repr(got)[:60]}; {REPACKAGE}")


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object, refused if it has a key twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice")
    return values


def reject_nan(name: str) -> float:
    """For `json.loads`: NaN and infinity."""
    raise ValueError(f"{name} is no number of JSON")
