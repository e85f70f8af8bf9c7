"""Annotated types of the YAML's values, each with its own message.

They are names, references, sizes, shapes and numbers.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from ..bucketing.shapes import Axis, ascending_error
from .strict import closest_key, format_value, tuple_from_list

MAX_SIZE = 2**31 - 1

AXES: tuple[str, ...] = get_args(Axis)
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_CLASS = rf"{_NAME}(\.{_NAME})*:{_NAME}"
_FUNCTION = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_HEADER = "[A-Za-z][A-Za-z0-9_-]{0,63}"
_UNIQUE = {"uniqueItems": True}
_Element = TypeVar("_Element")


def _pattern(pattern: str) -> Any:
    return Field(json_schema_extra={"pattern": f"^{pattern}$"})


def _matches(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"expected {expected}, got {format_value(value)}")
        return value

    return AfterValidator(check)


def _argument_name(name: str) -> str:
    if not re.fullmatch(_NAME, name) or keyword.iskeyword(name):
        raise ValueError(f"expected the name of a Python argument, got {format_value(name)}")
    return name


def _input_name(name: str) -> str:
    argument, *places = name.split(".")
    if not all((place.isascii() and place.isdigit()) or re.fullmatch(_NAME, place) for place in places):
        element = "`state.0` for a tuple's element, `batch.ids` for a dictionary's"
        raise ValueError(f"expected the name of a Python argument ({element}), got {format_value(name)}")
    _argument_name(argument)
    return name


def _unique_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name, times in Counter(names).items():
        if not name.isprintable():
            raise ValueError(f"expected printable names, got {format_value(name)}")
        if times > 1:
            raise ValueError(f"expected different names, got {name} {times} times")
    return names


def _dimension(value: Any) -> int | str:
    if value in AXES or (type(value) is int and 1 <= value <= MAX_SIZE):
        return value  # type: ignore[no-any-return]  # one of the two, as was checked
    near = closest_key(value, AXES) if isinstance(value, str) else None
    advice = f": did you mean {near}?" if near else ""
    raise ValueError(f"expected batch, time or a size of 1 or more, got {format_value(value)}{advice}")


def _each_axis_once(shape: tuple[int | Axis, ...]) -> tuple[int | Axis, ...]:
    for axis in AXES:
        if shape.count(axis) > 1:
            raise ValueError(f"expected {axis} once at most, got it {shape.count(axis)} times")
    return shape


def _ascending(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if error := ascending_error(sizes):
        raise ValueError(error)
    return sizes


def _number(value: Any) -> int | float:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"expected a finite number, got {format_value(value)}")


Name = Annotated[str, _pattern(_NAME), AfterValidator(_argument_name)]
"""A Python argument."""
InputName = Annotated[str, _pattern(rf"{_NAME}(\.([0-9]+|{_NAME}))*"), AfterValidator(_input_name)]
"""A Python argument, or an element of one that is a tuple (`state.0`) or a dictionary (`batch.ids`).

Tuples and dictionaries may hold others.
"""
Names = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1, json_schema_extra=_UNIQUE),
    BeforeValidator(tuple_from_list),
    AfterValidator(_unique_names),
]
FieldName = Annotated[
    str, _pattern(_HEADER), _matches(_HEADER, "a name that a header can have: letters, digits, - and _")
]
Variable = Annotated[str, _pattern(_NAME), _matches(_NAME, "the name of an environment variable")]
EngineName = Annotated[
    str,
    Field(
        json_schema_extra={
            "examples": ["auto", "native", "inductor", "onnxruntime", "eager"],
            "pattern": "^[A-Za-z0-9_-]+$",
        }
    ),
    _matches("[A-Za-z0-9_-]{1,100}", "auto or the name of a backend, as in onnxruntime"),
]

ClassName = Annotated[str, _pattern(_NAME), _matches(_NAME, "the name of a class, as in Tagger")]
MethodName = Annotated[str, _pattern(_NAME), _matches(_NAME, "the name of a method, as in infer")]
ClassPath = Annotated[str, _pattern(_CLASS), _matches(_CLASS, "module:Class, as in my_codec:TextCodec")]
FunctionPath = Annotated[str, _pattern(_FUNCTION), _matches(_FUNCTION, "module:function, as in my_kernel:choose")]
PathText = Annotated[
    str, Field(min_length=1), BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)
]

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
MAX_ROWS = 65_536
"""The largest number of rows of a bucket: more are run in several calls, and loading would take long."""
_AscendingSizes = Annotated[
    tuple[_Element, ...],
    Field(min_length=1, json_schema_extra=_UNIQUE),
    BeforeValidator(tuple_from_list),
    AfterValidator(_ascending),
]
BatchSizes = _AscendingSizes[Annotated[int, Field(ge=1, le=MAX_ROWS)]]
Sizes = _AscendingSizes[Size]
Dimension = Annotated[
    int | Axis,
    PlainValidator(_dimension),
    WithJsonSchema({"anyOf": [{"type": "string", "enum": list(AXES)}, {"type": "integer", "minimum": 1}]}),
]
Shape = Annotated[
    tuple[Dimension, ...], Field(min_length=1), BeforeValidator(tuple_from_list), AfterValidator(_each_axis_once)
]


def _two_ascending(values: Any) -> tuple[int | float, int | float]:
    if not (isinstance(values, list | tuple) and len(values) == 2):
        raise ValueError(f"expected the least and the largest value, as in [1, 4999], got {format_value(values)}")
    least, largest = (_number(value) for value in values)
    if least > largest:
        raise ValueError(f"expected the least value first, got {format_value(list(values))}")
    return least, largest


PadValue = Annotated[int | float | None, PlainValidator(_number), WithJsonSchema({"type": "number"})]
ValueRange = Annotated[
    tuple[int | float, int | float],
    PlainValidator(_two_ascending),
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]
Missing = Annotated[Literal["nan"] | None, BeforeValidator(lambda value: "nan" if str(value) == "nan" else value)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1, le=2**63 - 1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Threads = Annotated[int, Field(ge=1, le=4096)]
