"""JSON codec for dataclasses, driven by the types of their fields. Standard library only.

Dataclasses and named tuples are JSON objects with one key per field, tuples and collections are lists, paths are
strings. Every key must be present, defaults or not. Types are not converted: an integer is accepted as a float and
stays an integer. `Annotated` adds what a type cannot say:

- `INFINITE`: a float that may be infinite. JSON has no infinity, so it is written as "inf" or "-inf".
- `NO_OTHER_KEYS`: an object without keys that its class does not know. Elsewhere such keys are ignored.
- a function that raises a ValueError for a wrong value.

A dataclass can also check its values itself, in `__post_init__`. The message of such a ValueError begins with
"expected", or with the name of the field that is wrong; the codec puts the path of the value in front of it.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from math import inf, isfinite
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

REPACKAGE = "package the model again"
MOST_BYTES = 1 << 24
"""The largest file that is parsed: one of an archive with thousands of programs is smaller."""
_LONGEST_NAME = 255
_LONGEST_PATH = 1024
INFINITE = "infinite"
NO_OTHER_KEYS = "no other keys"

T = TypeVar("T")

_NONE = type(None)
_UNION = getattr(types, "UnionType", Union)
"""The origin of `int | str`, which Python 3.9 has not."""

_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class JsonError(ValueError):
    """A JSON value of the wrong type, or out of range; the message begins with the path of the value."""


def parse_json(text: str) -> Any:
    """Parse JSON text; refuse duplicate keys, NaN and infinity. Raises `ValueError`: the text is not JSON."""
    try:
        return json.loads(text, object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_nan)
    except RecursionError as error:
        raise ValueError("too many levels of lists and objects") from error


def read_text(path: Path) -> str:
    """Read a file in UTF-8 of at most `MOST_BYTES`: parsed JSON takes many times the size of its text.

    Raises `OSError`: it cannot be read.
    Raises `ValueError`: it is too large, or not UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    return content.decode("utf-8")


def read_json(kind: type[T], path: Path) -> T:
    """Read a JSON file that holds one value of type `kind`.

    Raises `JsonError`: the file is missing or damaged; the message names it and advises to package the model again.
    """
    try:
        return from_json(kind, parse_json(read_text(path)))
    except (OSError, ValueError) as error:
        raise JsonError(f"{path} cannot be read ({error}): {REPACKAGE}") from error


def write_json(kind: type[T], value: T, path: Path) -> None:
    """Write `value` to a file that `read_json` reads."""
    path.write_text(json.dumps(to_json(kind, value)), encoding="utf-8")


def from_json(kind: type[T], value: Any) -> T:
    """Convert a parsed JSON value to the type `kind`.

    >>> from_json(dict[str, tuple[int, ...]], {"sizes": [1, 2]})
    {'sizes': (1, 2)}
    >>> from_json(dict[str, tuple[int, ...]], {"sizes": [1, "2"]})
    Traceback (most recent call last):
    torchserve_neuron_lstm.config.json_codec.JsonError: sizes[1]: expected an integer, got '2'

    Raises `JsonError`: the value, or one within it, is not what its type says.
    """
    return cast(T, _read(kind, value, ""))


def to_json(kind: Any, value: Any) -> Any:
    """Convert a value of type `kind` to what `json.dumps` takes.

    >>> to_json(dict[str, Path], {"workdir": Path("out")})
    {'workdir': 'out'}
    """
    form, inner = _form(kind), get_args(kind)
    if form is Annotated:
        infinite = INFINITE in inner[1:] and isinstance(value, float) and not isfinite(value)
        return str(value) if infinite else to_json(inner[0], value)
    if form is Union:
        choices = [choice for choice in inner if choice is not _NONE]
        return value if value is None or len(choices) > 1 else to_json(choices[0], value)
    if form is tuple:
        return [to_json(each, item) for each, item in zip(_item_types(kind, len(value)), value)]
    if form is dict:
        return {key: to_json(inner[1], item) for key, item in value.items()}
    if form is object:
        members = _fields_of(kind)
        items = value if isinstance(value, tuple) else [getattr(value, name) for name in members]
        return {name: to_json(of, item) for (name, of), item in zip(members.items(), items)}
    return str(value) if kind is Path else value


def relative_path(name: str) -> None:
    """Refuse a path that is not below the archive's root, or not in its shortest form.

    >>> relative_path("programs/../..")
    Traceback (most recent call last):
    ValueError: expected a path below the archive's root, got 'programs/../..'
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == "." or set(name) & set("\\:\0"):
        raise ValueError(f"expected a path below the archive's root, got {abbreviate(name)}")
    if len(name) > _LONGEST_PATH or any(len(part.encode(errors="replace")) > _LONGEST_NAME for part in path.parts):
        raise ValueError(f"expected a path that a file can have, got {abbreviate(name)}")


def abbreviate(value: Any) -> str:
    """Return the first 60 characters of a value's `repr`."""
    try:
        return repr(value)[:60]
    except RecursionError:
        return f"a {type(value).__name__} of too many levels"


def _form(kind: Any) -> Any:
    """Classify a type: `object` for classes with fields, None for a leaf, else its generic origin."""
    origin = get_origin(kind)
    if origin is None:
        return object if is_dataclass(kind) or hasattr(kind, "_fields") else None
    return {_UNION: Union, Collection: tuple, Sequence: tuple, Mapping: dict}.get(origin, origin)


def _read(kind: Any, value: Any, path: str) -> Any:
    return _READERS.get(_form(kind), _read_leaf)(kind, value, path)


def _read_annotated(kind: Any, value: Any, path: str) -> Any:
    inner, *marks = get_args(kind)
    if INFINITE in marks and value in ("inf", "-inf"):
        return float(value)
    if NO_OTHER_KEYS in marks and isinstance(value, dict):
        keys = _fields_of(inner)
        if value.keys() - keys.keys():
            raise JsonError(f"{path or 'top level'}: expected {', '.join(keys)}, got {', '.join(value)}")
    found = _read(inner, value, path)
    for check in filter(callable, marks):
        _call(path, check, found)
    return found


def _read_union(kind: Any, value: Any, path: str) -> Any:
    choices = [choice for choice in get_args(kind) if choice is not _NONE]
    if value is None and _NONE in get_args(kind):
        return None
    if len(choices) == 1:
        return _read(choices[0], value, path)
    for choice in choices:
        with suppress(JsonError):
            return _read(choice, value, path)
    raise _mismatch(kind, value, path)


def _read_literal(kind: Any, value: Any, path: str) -> Any:
    if value not in get_args(kind):
        raise _mismatch(kind, value, path)
    return value


def _read_list(kind: Any, value: Any, path: str) -> tuple[Any, ...]:
    items = _expect(list, value, path)
    kinds = _item_types(kind, len(items))
    if len(kinds) != len(items):
        raise JsonError(f"{path}: expected {len(kinds)} values, got {len(items)}")
    return tuple(_read(each, item, f"{path}[{index}]") for index, (each, item) in enumerate(zip(kinds, items)))


def _read_mapping(kind: Any, value: Any, path: str) -> dict[str, Any]:
    key_type, item_type = get_args(kind)
    items = _expect(dict, value, path).items()
    return {_read(key_type, key, path): _read(item_type, item, _member(path, key)) for key, item in items}


def _read_object(kind: Any, value: Any, path: str) -> Any:
    given = _expect(dict, value, path)
    values = {}
    for name, of in _fields_of(kind).items():
        place = _member(path, name)
        if name not in given:
            raise JsonError(f"{place} is missing")
        values[name] = _read(of, given[name], place)
    return _call(path, kind, **values)


def _read_leaf(kind: Any, value: Any, path: str) -> Any:
    if kind is Any:
        return value
    if kind is Path:
        return Path(_expect(str, value, path))
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise _mismatch(kind, value, path)
    if isinstance(value, str) and _NO_TEXT.search(value):
        raise JsonError(f"{path or 'top level'}: expected text without control characters, got {abbreviate(value)}")
    if isinstance(value, float) and abs(value) == inf:  # JSON has 1e999
        raise JsonError(f"{path}: expected a finite number, got {value}")
    return value


_READERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    Annotated: _read_annotated,
    Union: _read_union,
    Literal: _read_literal,
    tuple: _read_list,
    dict: _read_mapping,
    object: _read_object,
}


def _expect(kind: type[T], value: Any, path: str) -> T:
    if not isinstance(value, kind):
        raise _mismatch(kind, value, path)
    return value


def _call(path: str, function: Callable[..., T], *args: Any, **values: Any) -> T:
    try:
        return function(*args, **values)
    except ValueError as error:
        separator = "" if not path else ": " if str(error).startswith("expected") else "."
        raise JsonError(f"{path}{separator}{error}") from error


def _mismatch(kind: Any, value: Any, path: str) -> JsonError:
    return JsonError(f"{path or 'top level'}: expected {_describe(kind)}, got {abbreviate(value)}")


def _describe(kind: Any) -> str:
    if _form(kind) is Union:  # a choice with its check is left out: its type says too little
        return " or ".join(_describe(choice) for choice in get_args(kind) if _form(choice) is not Annotated)
    return " or ".join(map(str, get_args(kind))) if get_origin(kind) is Literal else _NAMES[kind]


_NO_TEXT = re.compile("[\ud800-\udfff\0-\x08\x0b-\x1f\x7f-\x9f]")
"""Halves of a surrogate pair, which no file in UTF-8 can hold, and control characters, which a terminal would obey."""


def _member(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _item_types(kind: Any, count: int) -> tuple[Any, ...]:
    arguments = get_args(kind)
    is_fixed = get_origin(kind) is tuple and arguments[-1] is not ...
    return arguments if is_fixed else arguments[:1] * count


@cache
def _fields_of(kind: Any) -> Mapping[str, Any]:
    """The types of the fields that are in the JSON, by name."""
    hints = get_type_hints(kind, include_extras=True)
    if not is_dataclass(kind):
        return {name: hints[name] for name in kind._fields}
    return {field.name: hints[field.name] for field in fields(kind) if not field.metadata.get("packaging_only")}


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice")
    return values


def _reject_nan(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")
